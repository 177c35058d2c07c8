package config

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var rewrite = flag.Bool("rewrite", false, "write what is got into testdata, to be reviewed as a diff")

// files lists the cases of testdata with an ending.
func files(t *testing.T, ending string) []string {
	t.Helper()
	list, err := filepath.Glob("testdata/*" + ending)
	if err != nil || len(list) == 0 {
		t.Fatalf("no testdata/*%s: %v", ending, err)
	}
	return list
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestGoodFiles holds what is explained of each good file against its .want.
func TestGoodFiles(t *testing.T) {
	for _, path := range files(t, ".good.yaml") {
		t.Run(filepath.Base(path), func(t *testing.T) {
			c, err := Parse(readFile(t, path), filepath.Base(path))
			if err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			if err := c.Explain(&b); err != nil {
				t.Fatal(err)
			}
			golden(t, strings.TrimSuffix(path, ".yaml")+".want", b.String())
		})
	}
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(readFile(t, path)), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// TestBadFiles holds all faults of each bad file, in order, against the comment lines it begins with.
func TestBadFiles(t *testing.T) {
	for _, path := range files(t, ".bad.yaml") {
		t.Run(filepath.Base(path), func(t *testing.T) {
			text := string(readFile(t, path))
			if *rewrite {
				// Twice, because the comments move the lines that they speak of.
				for range 2 {
					_, rest := comments(text)
					text = strings.Join(faultLines(t, text), "\n") + "\n" + rest
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, _ := comments(text)
			if diff := cmp.Diff(want, faultLines(t, text)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// faultLines are the faults of a text as comments.
func faultLines(t *testing.T, text string) []string {
	t.Helper()
	_, err := Parse([]byte(text), "bad.yaml")
	faults, isFaults := err.(*Faults)
	if !isFaults {
		t.Fatalf("got %v, want faults", err)
	}
	var lines []string
	for _, f := range faults.List {
		lines = append(lines, "# "+f.String())
	}
	return lines
}

// comments cuts off the comment lines a text begins with.
func comments(text string) (list []string, rest string) {
	for strings.HasPrefix(text, "#") {
		line, after, _ := strings.Cut(text, "\n")
		list, text = append(list, line), after
	}
	return list, text
}
