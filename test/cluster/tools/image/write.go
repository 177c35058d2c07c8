package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// searched is what programs in the image are looked for in.
const searched = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// write makes the image and puts the archive in its place once it is whole.
func (o *order) write() (err error) {
	folder, err := os.MkdirTemp("", "image-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	if err := o.lay(folder); err != nil {
		return fmt.Errorf("cannot make the image %q: %w", o.name, err)
	}
	out, err := os.CreateTemp(filepath.Dir(o.out), ".image-")
	if err != nil {
		return err
	}
	defer os.Remove(out.Name())
	err = archive(out, folder)
	if err := errors.Join(err, out.Chmod(0o644), out.Close()); err != nil {
		return fmt.Errorf("cannot write %q: %w", o.out, err)
	}
	return os.Rename(out.Name(), o.out)
}

// lay writes the image into a folder. One platform makes a plain image, several an index of images.
func (o *order) lay(folder string) error {
	path, err := layout.Write(folder, empty.Index)
	if err != nil {
		return err
	}
	_, tag, _ := strings.Cut(o.name[strings.LastIndexByte(o.name, '/')+1:], ":")
	// The first is what containerd and Docker go by, the second what others do.
	named := layout.WithAnnotations(map[string]string{"io.containerd.image.name": o.name, "org.opencontainers.image.ref.name": tag})
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for i := range o.platforms {
		image, err := o.image(&o.platforms[i])
		if err != nil {
			return err
		}
		if len(o.platforms) == 1 {
			return path.AppendImage(image, named, layout.WithPlatform(o.platforms[i]))
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &o.platforms[i]}})
	}
	return path.AppendIndex(index, named)
}

// image is the one for a platform.
func (o *order) image(p *v1.Platform) (v1.Image, error) {
	content, err := o.content(p)
	if err != nil {
		return nil, err
	}
	layer := v1.Layer(static.NewLayer(content, types.OCIUncompressedLayer))
	if o.compress {
		open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }
		if layer, err = tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching); err != nil {
			return nil, err
		}
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if image, err = mutate.AppendLayers(image, layer); err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Variant = p.OS, p.Architecture, p.Variant
	config.Config = v1.Config{Entrypoint: o.entry, User: o.user, Env: []string{searched}, Labels: o.labels}
	return mutate.ConfigFile(image, config)
}

// content is the archive of a platform's files, all of root's and of no time, in the order of their places.
func (o *order) content(p *v1.Platform) ([]byte, error) {
	files := slices.Clone(o.files)
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.place, b.place) })
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	folders := make(map[string]bool)
	if err := addFolder(w, folders, "tmp", 0o1777); err != nil {
		return nil, err
	}
	for _, f := range files {
		source := strings.NewReplacer("{os}", p.OS, "{arch}", p.Architecture).Replace(f.source)
		if err := addFolder(w, folders, path.Dir(f.place), 0o755); err != nil {
			return nil, err
		}
		if err := o.addFile(w, source, f.place, p); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

// addFolder writes a folder and those above it, where they aren't there.
func addFolder(w *tar.Writer, there map[string]bool, name string, mode int64) error {
	if name == "." || there[name] {
		return nil
	}
	if err := addFolder(w, there, path.Dir(name), 0o755); err != nil {
		return err
	}
	there[name] = true
	return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode})
}

func (o *order) addFile(w *tar.Writer, source, place string, p *v1.Platform) error {
	text, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	if err := runnable(text, p, o.static); err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	mode := int64(0o644)
	if info.Mode()&0o111 != 0 {
		mode = 0o755
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: place, Mode: mode, Size: int64(len(text))}); err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}

// runnable refuses a program for another processor, and, where that is asked for, one that needs libraries. What is no
// program is fine.
func runnable(text []byte, p *v1.Platform, static bool) error {
	if !bytes.HasPrefix(text, []byte(elf.ELFMAG)) {
		return nil
	}
	program, err := elf.NewFile(bytes.NewReader(text))
	if err != nil {
		return err
	}
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	if want, known := machines[p.Architecture]; known && program.Machine != want {
		return fmt.Errorf("is a program for %v, and the image for %s: build it for that", program.Machine, p)
	}
	interpreted := slices.ContainsFunc(program.Progs, func(s *elf.Prog) bool { return s.Type == elf.PT_INTERP })
	if static && interpreted {
		return errors.New("needs libraries that the image doesn't have: build it with CGO_ENABLED=0")
	}
	return nil
}

// archive writes a folder as a tar file.
func archive(out io.Writer, folder string) error {
	w := tar.NewWriter(out)
	err := filepath.WalkDir(folder, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		inside, err := filepath.Rel(folder, name)
		if err != nil {
			return err
		}
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: filepath.ToSlash(inside), Mode: 0o644, Size: info.Size()}); err != nil {
			return err
		}
		_, err = io.Copy(w, f)
		return err
	})
	return errors.Join(err, w.Close())
}
