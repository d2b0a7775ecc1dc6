// Command sbom writes the software bill of materials of a Go program, in CycloneDX's JSON, from what
// the program itself says that it was built from. It is a module of its own, so that what it needs
// is not in the module graph of a daemon that runs as root.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	program := flag.String("program", "", "the program")
	version := flag.String("version", "", "its version; without it, what the program says")
	date := flag.Int64("date", 0, "what the bill is dated, in seconds since the epoch")
	flag.Parse()
	if err := run(*program, *version, time.Unix(*date, 0).UTC(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

// run writes the bill of one program.
func run(program, version string, date time.Time, w io.Writer) error {
	if program == "" {
		return errors.New("--program is missing")
	}
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	if version == "" {
		version = info.Main.Version
	}
	return cyclonedx.NewBOMEncoder(w, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bill(info,
		filepath.Base(program), version, content, date))
}

// bill lists the program, the modules in it and Go's own library.
func bill(info *debug.BuildInfo, name, version string, content []byte, date time.Time) *cyclonedx.BOM {
	sum := sha256.Sum256(content)
	application := cyclonedx.Component{
		BOMRef: purl(info.Main.Path, version), Type: cyclonedx.ComponentTypeApplication, Name: name, Version: version,
		PackageURL: purl(info.Main.Path, version),
		Licenses:   &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "Apache-2.0"}}},
		Hashes:     &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
		Properties: settings(info),
	}
	library := cyclonedx.Component{
		BOMRef: purl("std", info.GoVersion), Type: cyclonedx.ComponentTypeLibrary, Name: "std", Version: info.GoVersion,
		PackageURL: purl("std", info.GoVersion),
	}
	components, below := []cyclonedx.Component{library}, []string{library.BOMRef}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		ref := purl(module.Path, module.Version)
		components = append(components, cyclonedx.Component{
			BOMRef: ref, Type: cyclonedx.ComponentTypeLibrary, Name: module.Path, Version: module.Version, PackageURL: ref,
			Properties: &[]cyclonedx.Property{{Name: "go.sum", Value: module.Sum}},
		})
		below = append(below, ref)
	}
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Timestamp: date.Format(time.RFC3339), Component: &application}
	bom.Components = &components
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: application.BOMRef, Dependencies: &below}}
	return bom
}

// settings are those of the build: the commit, the system and the architecture.
func settings(info *debug.BuildInfo) *[]cyclonedx.Property {
	var list []cyclonedx.Property
	for _, s := range info.Settings {
		list = append(list, cyclonedx.Property{Name: "go.build." + s.Key, Value: s.Value})
	}
	return &list
}

// purl is the package URL of a Go module.
func purl(path, version string) string { return "pkg:golang/" + path + "@" + version }
