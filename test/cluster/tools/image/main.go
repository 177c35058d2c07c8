// Command image writes an image of the Open Container Initiative from files of this machine, for one platform or several,
// as an archive that container engines load and registries' clients push. It asks no engine, no registry and no image to
// build on.
//
//	image -o sluice.tar -name sluice:v1.2.3 -platforms linux/amd64,linux/arm64 -entry /sluice dist/sluice-{os}-{arch}=/sluice
//
// The same files make the same archive, byte for byte. It refuses a program that a platform can't run.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// order says what image is wanted.
type order struct {
	out       string
	name      string // with a tag
	platforms []v1.Platform
	user      string
	entry     []string
	labels    map[string]string
	compress  bool
	static    bool
	files     []file
}

// file is a file of this machine and its place in the image. {os} and {arch} in source stand for the platform's.
type file struct{ source, place string }

func main() {
	o, err := orders(os.Args[1:])
	if err == nil {
		err = o.write()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// orders reads the arguments.
func orders(args []string) (*order, error) {
	o := &order{labels: make(map[string]string)}
	f := flag.NewFlagSet("image", flag.ContinueOnError)
	f.StringVar(&o.out, "o", "", "`file` to write")
	f.StringVar(&o.name, "name", "", "`name:tag` of the image")
	platforms := f.String("platforms", "linux/amd64", "`os/arch,…` that the image is for")
	f.StringVar(&o.user, "user", "65532:65532", "`uid:gid` that it runs as; empty for root")
	f.BoolVar(&o.compress, "gzip", false, "compress what it holds")
	f.BoolVar(&o.static, "static", false, "refuse programs that need libraries")
	f.Func("entry", "`argument` of what is run (repeatable)", func(s string) error { o.entry = append(o.entry, s); return nil })
	f.Func("label", "`key=value` to label it with (repeatable)", func(s string) error {
		key, value, ok := strings.Cut(s, "=")
		if !ok {
			return errors.New("want key=value")
		}
		o.labels[key] = value
		return nil
	})
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	var faults []error
	if o.out == "" {
		faults = append(faults, errors.New("-o: say which file to write"))
	}
	if _, tag, _ := strings.Cut(o.name[strings.LastIndexByte(o.name, '/')+1:], ":"); tag == "" {
		faults = append(faults, fmt.Errorf("-name %q: want name:tag", o.name))
	}
	for text := range strings.SplitSeq(*platforms, ",") {
		p, err := v1.ParsePlatform(text)
		if err != nil || p.OS == "" || p.Architecture == "" {
			faults = append(faults, fmt.Errorf("-platforms: %q: want os/arch, such as linux/arm64", text))
			continue
		}
		o.platforms = append(o.platforms, *p)
	}
	if f.NArg() == 0 {
		faults = append(faults, errors.New("say which files it holds, each as file=/place/in/the/image"))
	}
	for _, arg := range f.Args() {
		source, place, ok := strings.Cut(arg, "=")
		if !ok || !strings.HasPrefix(place, "/") || strings.HasSuffix(place, "/") {
			faults = append(faults, fmt.Errorf("%q: want file=/place/in/the/image", arg))
			continue
		}
		o.files = append(o.files, file{source, strings.TrimPrefix(place, "/")})
	}
	return o, errors.Join(faults...)
}
