// Command sbom writes the software bill of materials of a Go program, in CycloneDX's JSON, from what
// the program itself says that it was built from. Run it in the folder of the program's module: from there it asks go
// which modules need which, and finds their licences. It is a module of its own, so that what it needs
// is not in the module graph of a daemon that runs as root.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
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
	modules, err := readModules()
	if err != nil {
		return err
	}
	bom, err := bill(info, modules, filepath.Base(program), version, content, date)
	if err != nil {
		return err
	}
	return cyclonedx.NewBOMEncoder(w, cyclonedx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, specification)
}

// specification is the newest version that the scanners of most registries read.
const specification = cyclonedx.SpecVersion1_5

// bill lists the program, the modules in it and Go's own library.
func bill(info *debug.BuildInfo, modules *modules, name, version string, content []byte,
	date time.Time) (*cyclonedx.BOM, error) {
	sum := sha256.Sum256(content)
	application := cyclonedx.Component{
		BOMRef: purl(info.Main.Path, version), Type: cyclonedx.ComponentTypeApplication, Name: name, Version: version,
		PackageURL: purl(info.Main.Path, version),
		Licenses:   licences("Apache-2.0"),
		Hashes:     &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
		Properties: settings(info),
	}
	goVersion := strings.TrimPrefix(strings.Fields(info.GoVersion)[0], "go")
	library := cyclonedx.Component{ // under the name by which scanners and vuln.go.dev know it
		BOMRef: purl("stdlib", goVersion), Type: cyclonedx.ComponentTypeLibrary, Name: "stdlib", Version: goVersion,
		PackageURL: purl("stdlib", goVersion), CPE: "cpe:2.3:a:golang:go:" + goVersion + ":*:*:*:*:*:*:*",
		Licenses: licences("BSD-3-Clause"),
	}
	components, refs := []cyclonedx.Component{library}, map[string]string{info.Main.Path: application.BOMRef}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		ref := purl(module.Path, module.Version)
		refs[module.Path] = ref
		hash, err := moduleHash(module.Sum)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", module.Path, err)
		}
		ids, err := modules.licences(module.Path)
		if err != nil {
			return nil, err
		}
		components = append(components, cyclonedx.Component{
			BOMRef: ref, Type: cyclonedx.ComponentTypeLibrary, Name: module.Path, Version: module.Version, PackageURL: ref,
			Licenses: licences(ids...), Hashes: &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hash}},
			Properties: &[]cyclonedx.Property{{Name: "go.sum", Value: module.Sum}},
		})
	}
	dependencies := []cyclonedx.Dependency{{Ref: library.BOMRef}}
	for path, ref := range refs {
		below := []string{library.BOMRef}
		for _, needed := range modules.needs[path] {
			if ref, linked := refs[needed]; linked {
				below = append(below, ref)
			}
		}
		slices.Sort(below)
		below = slices.Compact(below)
		dependencies = append(dependencies, cyclonedx.Dependency{Ref: ref, Dependencies: &below})
	}
	slices.SortFunc(dependencies, func(a, b cyclonedx.Dependency) int { return strings.Compare(a.Ref, b.Ref) })
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Timestamp: date.Format(time.RFC3339), Component: &application}
	bom.Components = &components
	bom.Dependencies = &dependencies
	return bom, nil
}

// moduleHash is the SHA-256 of a sum of go.sum, which is over the names and hashes of a module's files.
func moduleHash(sum string) (string, error) {
	text, known := strings.CutPrefix(sum, "h1:")
	if !known {
		return "", fmt.Errorf("the sum %q is not one of go.sum", sum)
	}
	hash, err := base64.StdEncoding.DecodeString(text)
	return hex.EncodeToString(hash), err
}

// licences lists licences by their SPDX identifiers.
func licences(ids ...string) *cyclonedx.Licenses {
	var list cyclonedx.Licenses
	for _, id := range ids {
		list = append(list, cyclonedx.LicenseChoice{License: &cyclonedx.License{ID: id}})
	}
	return &list
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
