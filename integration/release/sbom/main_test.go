package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
)

// TestBill writes the bill of the test's own program, and reads it back.
func TestBill(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out, again bytes.Buffer
	for _, w := range []*bytes.Buffer{&out, &again} {
		if err := run(program, "v1.2.3", time.Unix(1, 0).UTC(), w); err != nil {
			t.Fatal(err)
		}
	}
	if out.String() != again.String() {
		t.Error("two bills of one program differ")
	}
	var bom cyclonedx.BOM
	if err := cyclonedx.NewBOMDecoder(&out, cyclonedx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	if c := bom.Metadata.Component; c.Version != "v1.2.3" || !strings.HasSuffix(c.PackageURL, "@v1.2.3") ||
		len(*c.Hashes) != 1 {
		t.Errorf("the program is %+v", c)
	}
	names := make(map[string]string)
	for _, c := range *bom.Components {
		names[c.Name] = c.Version
	}
	if names["github.com/CycloneDX/cyclonedx-go"] == "" || !strings.HasPrefix(names["stdlib"], "1.") {
		t.Errorf("the parts are %v", names)
	}
	for _, c := range *bom.Components {
		if c.Licenses == nil || c.Name != "stdlib" && (c.Hashes == nil || len((*c.Hashes)[0].Value) != 64) {
			t.Errorf("%s: licences %v, hashes %v", c.Name, c.Licenses, c.Hashes)
		}
	}
	below := make(map[string][]string)
	for _, d := range *bom.Dependencies {
		if d.Dependencies != nil {
			below[d.Ref] = *d.Dependencies
		}
	}
	if parts := below[bom.Metadata.Component.BOMRef]; len(parts) < 3 {
		t.Errorf("the program needs %v", parts)
	}
	for _, name := range []string{"", "main.go", "missing"} {
		if err := run(name, "", time.Time{}, &out); err == nil {
			t.Errorf("program %q has a bill", name)
		}
	}
}
