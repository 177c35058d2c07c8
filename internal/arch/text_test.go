package arch

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// postponed matches what says that something is still to be done. The words are put together here so that this file
// does not contain them.
var postponed = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|X` + `XX)\b|(?i:not ` + `implemented)`)

// registries are host names that a file names only if it depends on where its author fetched things from.
var registries = regexp.MustCompile(`(^|[^\w.-])(proxy\.golang\.` + `org|sum\.golang\.` + `org|goproxy\.\w+|(index\.|registry-1\.)?docker\.` + `io|ghcr\.` + `io|` +
	`([a-z0-9-]+\.)?gcr\.` + `io|quay\.` + `io|registry\.k8s\.` + `io|nvcr\.` + `io|public\.ecr\.` + `aws|pypi\.` + `org|files\.pythonhosted\.` + `org|registry\.npmjs\.` + `org|` +
	`crates\.` + `io|registry\.terraform\.` + `io)\b`)

// machine matches the beginning of a path that exists on somebody's machine.
var machine = regexp.MustCompile(`^/(root|home|work|tmp)(/|$)`)

// told matches such a path in running text: in comments, pages and documents.
var told = regexp.MustCompile("(^|[\\s\"'`(=:,])/(root|home|work|tmp)/\\w")

// checkText reads every text file for what must not stay in a repository.
func checkText(t *tree) []string {
	var out []string
	for _, s := range t.files {
		if path.Base(s.path) == "go.sum" { // hashes spell anything
			continue
		}
		words := slices.Contains([]string{".md", ".yaml", ".yml"}, path.Ext(s.path))
		n := 0
		for line := range strings.Lines(string(s.text)) {
			n++
			if words && told.MatchString(line) {
				out = append(out, fmt.Sprintf("%s:%d: has a path of somebody's machine: it means nothing on another", s.path, n))
			}
			if word := postponed.FindString(line); word != "" && !s.generated {
				out = append(out, fmt.Sprintf("%s:%d: %q: what is left undone belongs where work is planned, not in the tree", s.path, n, word))
			}
			for _, m := range registries.FindAllStringSubmatch(line, -1) {
				out = append(out, fmt.Sprintf("%s:%d: names the registry %s: where things are fetched from is the builder's choice", s.path, n, m[2]))
			}
		}
	}
	for _, s := range t.goFiles() {
		for _, group := range s.ast.Comments {
			for _, c := range group.List {
				if told.MatchString(c.Text) {
					out = append(out, fmt.Sprintf("%s: a comment has a path of somebody's machine: it means nothing on another", t.at(c)))
				}
			}
		}
	}
	for _, s := range t.code(false) {
		ast.Inspect(s.ast, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			if value, err := strconv.Unquote(lit.Value); err == nil && machine.MatchString(value) {
				out = append(out, fmt.Sprintf("%s: %s is a path of somebody's machine: take it from a flag or os.TempDir", t.at(lit), lit.Value))
			}
			return true
		})
	}
	return out
}

var replace = regexp.MustCompile(`(?m)^\s*replace\b`)

// checkModule: the module builds for everyone who fetches it, under a licence.
func checkModule(t *tree) []string {
	out := []string{"LICENSE: is missing or empty: without a licence nobody may use this"}
	for _, s := range t.files {
		if s.path == "LICENSE" && len(strings.TrimSpace(string(s.text))) > 0 {
			out = nil
		}
	}
	for _, s := range t.files {
		if s.path == "go.mod" && replace.Match(s.text) {
			out = append(out, "go.mod: has a replace: whoever imports or installs the module does not get it")
		}
	}
	return out
}
