package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// program writes the smallest file that passes for a program of a processor, with an interpreter or without.
func program(t *testing.T, name string, machine elf.Machine, libraries bool) {
	t.Helper()
	h := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: 1, Ehsize: 64, Phentsize: 56}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	var out bytes.Buffer
	if libraries {
		h.Phoff, h.Phnum = 64, 1
	}
	write := func(x any) {
		if err := binary.Write(&out, binary.LittleEndian, x); err != nil {
			t.Fatal(err)
		}
	}
	write(h)
	if libraries {
		write(elf.Prog64{Type: uint32(elf.PT_INTERP)})
	}
	if err := os.WriteFile(name, out.Bytes(), 0o755); err != nil {
		t.Fatal(err)
	}
}

// run makes an image as a command line says.
func run(args ...string) error {
	o, err := orders(args)
	if err == nil {
		err = o.write()
	}
	return err
}

// unpack reads an archive into a folder.
func unpack(t *testing.T, name string) string {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	folder := t.TempDir()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err == io.EOF {
			return folder
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		place := filepath.Join(folder, filepath.FromSlash(h.Name))
		if err := os.MkdirAll(filepath.Dir(place), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(place, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// read is what an archive holds. The library's own check looks into compressed layers alone; files reads all of them.
func read(t *testing.T, name string, compressed bool) v1.ImageIndex {
	t.Helper()
	index, err := layout.ImageIndexFromPath(unpack(t, name))
	if err != nil {
		t.Fatal(err)
	}
	var options []validate.Option
	if !compressed {
		options = append(options, validate.Fast)
	}
	if err := validate.Index(index, options...); err != nil {
		t.Fatal(err)
	}
	return index
}

// files lists what an image holds, with the modes.
func files(t *testing.T, image v1.Image) map[string]int64 {
	t.Helper()
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("got %d layers and %v, want 1", len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	out := make(map[string]int64)
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out[h.Name] = h.Mode
	}
}

// TestSeveralPlatforms reads back an index of two images: each is for its platform, whole, and runs the platform's own
// program as nobody. Made again, it is the same.
func TestSeveralPlatforms(t *testing.T) {
	folder := t.TempDir()
	program(t, filepath.Join(folder, "p-amd64"), elf.EM_X86_64, false)
	program(t, filepath.Join(folder, "p-arm64"), elf.EM_AARCH64, false)
	out := filepath.Join(folder, "p.tar")
	made := func(out string, more ...string) []byte {
		t.Helper()
		args := append([]string{"-o", out, "-name", "host.test/a/p:v1", "-platforms", "linux/amd64,linux/arm64", "-entry", "/bin/p", "-entry", "serve", "-static",
			"-label", "org.opencontainers.image.version=v1"}, more...)
		if err := run(append(args, filepath.Join(folder, "p-{arch}")+"=/bin/p")...); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	for _, more := range [][]string{nil, {"-gzip"}} {
		first, again := made(out, more...), made(filepath.Join(folder, "again.tar"), more...)
		if !bytes.Equal(first, again) {
			t.Errorf("%q: the same files made another archive", more)
		}
		outer, err := read(t, out, more != nil).IndexManifest()
		if err != nil || len(outer.Manifests) != 1 {
			t.Fatalf("got %+v and %v, want one index", outer, err)
		}
		if got := outer.Manifests[0].Annotations; got["io.containerd.image.name"] != "host.test/a/p:v1" || got["org.opencontainers.image.ref.name"] != "v1" {
			t.Errorf("got the names %q", got)
		}
		index, err := read(t, out, more != nil).ImageIndex(outer.Manifests[0].Digest)
		if err != nil {
			t.Fatal(err)
		}
		list, err := index.IndexManifest()
		if err != nil || len(list.Manifests) != 2 {
			t.Fatalf("got %+v and %v, want two images", list, err)
		}
		for i, arch := range []string{"amd64", "arm64"} {
			checkImage(t, index, list.Manifests[i], arch)
		}
	}
}

func checkImage(t *testing.T, index v1.ImageIndex, d v1.Descriptor, arch string) {
	t.Helper()
	image, err := index.Image(d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if d.Platform == nil || d.Platform.String() != "linux/"+arch || config.OS != "linux" || config.Architecture != arch {
		t.Errorf("got platform %v and %s/%s, want linux/%s", d.Platform, config.OS, config.Architecture, arch)
	}
	c := config.Config
	if strings.Join(c.Entrypoint, " ") != "/bin/p serve" || c.User != "65532:65532" || c.Labels["org.opencontainers.image.version"] != "v1" {
		t.Errorf("got entry %q, user %q, labels %q", c.Entrypoint, c.User, c.Labels)
	}
	got := files(t, image)
	if len(got) != 3 || got["tmp/"] != 0o1777 || got["bin/"] != 0o755 || got["bin/p"] != 0o755 {
		t.Errorf("got files %v", got)
	}
}

// TestOnePlatform: an image for one platform is no index, as engines of all ages load it.
func TestOnePlatform(t *testing.T) {
	folder := t.TempDir()
	program(t, filepath.Join(folder, "p"), elf.EM_X86_64, true)
	out := filepath.Join(folder, "p.tar")
	if err := run("-o", out, "-name", "p:1", "-user", "", filepath.Join(folder, "p")+"=/p"); err != nil {
		t.Fatal(err)
	}
	index := read(t, out, false)
	list, err := index.IndexManifest()
	if err != nil || len(list.Manifests) != 1 {
		t.Fatalf("got %+v and %v, want one image", list, err)
	}
	if image, err := index.Image(list.Manifests[0].Digest); err != nil || len(files(t, image)) != 2 {
		t.Errorf("got %v and %v", image, err)
	}
}

// TestRefused: every fault of the arguments at once, and programs that would not run.
func TestRefused(t *testing.T) {
	folder := t.TempDir()
	arm, linked, out := filepath.Join(folder, "arm"), filepath.Join(folder, "linked"), filepath.Join(folder, "o.tar")
	program(t, arm, elf.EM_AARCH64, false)
	program(t, linked, elf.EM_X86_64, true)
	f := func(want string, args ...string) {
		t.Helper()
		err := run(args...)
		for _, part := range strings.Split(want, "|") {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%q: got %v, want %q in it", args, err, part)
			}
		}
		if found, _ := filepath.Glob(filepath.Join(folder, "*.tar")); len(found) > 0 {
			t.Errorf("%q: got %q, want no archive", args, found)
		}
	}
	f(`-o: say|-name "": want|-platforms: "arm64": want|"a": want file=/place|"b=c": want file`, "-platforms", "arm64", "a", "b=c")
	f("say which files", "-o", out, "-name", "p:1")
	f(`-name "host.test:5000/p": want name:tag`, "-o", out, "-name", "host.test:5000/p", linked+"=/p")
	f("is a program for EM_AARCH64, and the image for linux/amd64", "-o", out, "-name", "p:1", arm+"=/p")
	f("build it with CGO_ENABLED=0", "-o", out, "-name", "p:1", "-static", linked+"=/p")
	f("no such file", "-o", out, "-name", "p:1", filepath.Join(folder, "none")+"=/p")
}
