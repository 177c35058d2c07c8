package arch

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/cockroachdb/datadriven"
)

// checks are all checks by name; a name is also the script in testdata that shows the check complaining.
func checks() map[string]func(*tree) []string {
	return map[string]func(*tree) []string{
		"arrows":     checkArrows,
		"size":       checkSize,
		"depth":      checkDepth,
		"aliases":    checkAliases,
		"interfaces": checkInterfaces,
		"documented": checkDocumented,
		"packagedoc": checkPackageDoc,
		"state":      checkState,
		"folders":    checkFolders,
		"waiting":    checkWaiting,
		"fuzz":       checkFuzz,
		"text":       checkText,
		"names":      checkNames,
		"exported":   checkExported,
		"clock":      checkClock,
		"metrics":    checkMetrics,
		"module":     checkModule,
		"map":        checkMap,
		"decisions":  checkDecisions,
	}
}

// TestRepository runs every check over the repository itself.
func TestRepository(t *testing.T) {
	repository, err := load(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(repository.goFiles()); n < 20 {
		t.Fatalf("got %d Go files, want the whole repository", n)
	}
	for name, check := range checks() {
		t.Run(name, func(t *testing.T) {
			for _, complaint := range check(repository) {
				t.Error(complaint)
			}
		})
	}
}

// TestChecks shows each check complaining about small broken trees, and only about what is broken in them.
func TestChecks(t *testing.T) {
	shown := make(map[string]bool)
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			check, ok := checks()[d.Cmd]
			if !ok {
				d.Fatalf(t, "no check %q", d.Cmd)
			}
			tr, err := load(unpack(strings.ReplaceAll(d.Input, mark, "")))
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			got := check(tr)
			if len(got) == 0 {
				return "fine\n"
			}
			shown[d.Cmd] = true
			slices.Sort(got)
			return remark(d.Input, strings.Join(got, "\n")+"\n")
		})
	})
	for name := range checks() {
		if !shown[name] {
			t.Errorf("no script in testdata makes the check %q complain", name)
		}
	}
}

// mark stands inside words that the tree itself must not hold, such as hosts of registries: it is taken out before a check sees
// the script.
const mark = "‹›"

// remark puts the marks of words in the script back where the same words stand in the text.
func remark(script, text string) string {
	for _, word := range regexp.MustCompile(`[\w./:-]*`+mark+`[\w./:-]*`).FindAllString(script, -1) {
		text = strings.ReplaceAll(text, strings.ReplaceAll(word, mark, ""), word)
	}
	return text
}

// unpack makes a tree of "-- path --" lines, each followed by the file's text. A path that ends in a slash is a folder.
// In the text, "repeat N:" at the start of a line stands for N times the rest of that line.
func unpack(script string) fstest.MapFS {
	tree := make(fstest.MapFS)
	var file *fstest.MapFile
	for line := range strings.Lines(script) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "-- "); ok && strings.HasSuffix(name, " --") {
			name = strings.TrimSuffix(name, " --")
			file = &fstest.MapFile{Mode: 0o644}
			if dir, ok := strings.CutSuffix(name, "/"); ok {
				file.Mode, name = os.ModeDir|0o755, dir
			}
			tree[name] = file
			continue
		}
		n := 1
		if rest, ok := strings.CutPrefix(line, "repeat "); ok {
			count, text, _ := strings.Cut(rest, ":")
			fmt.Sscan(count, &n)
			line = text
		}
		file.Data = append(file.Data, strings.Repeat(line, n)...)
	}
	return tree
}
