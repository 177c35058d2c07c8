package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	goyaml "go.yaml.in/yaml/v2"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/api/v1alpha2"
)

// kinds are the documents that can be read, with the apiVersions of each.
var kinds = []struct {
	kind     string
	versions []string
}{
	{v1alpha1.InferenceGatewayConfigKind, []string{v1alpha1.InferenceGroup + "/" + v1alpha1.Version}},
	{v1alpha1.EndpointsKind, []string{v1alpha1.GatewayGroup + "/" + v1alpha1.Version}},
	{v1alpha1.GatewayPolicyKind, []string{v1alpha1.GatewayGroup + "/" + v1alpha1.Version}},
	{v1alpha1.GlobalGatewayKind, []string{v1alpha1.GatewayGroup + "/" + v1alpha1.Version}},
	{v1alpha2.InferenceModelRewriteKind, []string{v1alpha2.LLMDGroup + "/" + v1alpha2.Version, v1alpha2.ExtensionGroup + "/" + v1alpha2.Version}},
	{v1alpha2.InferenceObjectiveKind, []string{v1alpha2.LLMDGroup + "/" + v1alpha2.Version, v1alpha2.ExtensionGroup + "/" + v1alpha2.Version}},
	{configMapKind, []string{"v1"}},
}

func knownKinds() string {
	var s []string
	for _, k := range kinds {
		s = append(s, fmt.Sprintf("%s of %s", k.kind, either(k.versions)))
	}
	return "known kinds are " + strings.Join(s[:len(s)-1], ", ") + " and " + s[len(s)-1]
}

// chunk is the text of one document and the line of the file it begins on.
type chunk struct {
	text []byte
	line int
}

// split cuts a stream at its document marks. A mark stays with the text after it, because YAML allows content on its
// line, and with the directives before it.
func split(docs []byte) []chunk {
	docs = bytes.TrimPrefix(docs, []byte("\xef\xbb\xbf"))
	var chunks []chunk
	start, startLine, line := 0, 1, 1
	begun := false // the current chunk has a mark or content
	cut := func(at, atLine int) {
		if at > start {
			chunks = append(chunks, chunk{docs[start:at], startLine})
		}
		start, startLine, begun = at, atLine, false
	}
	for at := 0; at < len(docs); line++ {
		next := len(docs)
		if i := bytes.IndexByte(docs[at:], '\n'); i >= 0 {
			next = at + i + 1
		}
		switch text := docs[at:next]; {
		case marks(text, "---"):
			if begun {
				cut(at, line)
			}
			begun = true
		case marks(text, "..."):
			cut(next, line+1)
		case len(bytes.TrimSpace(text)) > 0 && text[0] != '#' && text[0] != '%':
			begun = true
		}
		at = next
	}
	cut(len(docs), line)
	return chunks
}

// marks says whether a line begins or ends a document.
func marks(line []byte, mark string) bool {
	rest, found := bytes.CutPrefix(line, []byte(mark))
	return found && (len(rest) == 0 || strings.IndexByte(" \t\r\n", rest[0]) >= 0)
}

// read turns a stream into documents of known kinds.
func read(docs []byte) []*document {
	list := objects(docs)
	for _, d := range list {
		if d.tree != nil {
			d.identify()
		}
	}
	return list
}

// objects turns a stream into documents, leaving out empty ones. A document that can't be read has a fault and no tree.
func objects(docs []byte) []*document {
	var list []*document
	number := 1
	for _, c := range split(docs) {
		d := &document{number: number}
		root, empty := d.parse(c)
		if empty {
			continue
		}
		number++
		if len(d.faults) > 0 && root == nil {
			list = append(list, d)
			continue
		}
		list = append(list, d.unpack(root)...)
	}
	return list
}

// unpack is the document whose text holds a value, or those that it lists: an object with items whose kind ends in List, which
// is what kubectl get prints for several, is as many documents as it has items.
func (d *document) unpack(root any) []*document {
	tree, isObject := root.(map[string]any)
	if !isObject {
		d.say("must be an object with apiVersion, kind, metadata and spec, not %s", noun(root))
		return []*document{d}
	}
	if m, isObject := tree["metadata"].(map[string]any); isObject {
		d.name, _ = m["name"].(string)
	}
	d.kind, _ = tree["kind"].(string)
	for i := range d.faults {
		d.faults[i].Kind, d.faults[i].Name = d.kind, d.name
	}
	items, listed := tree["items"]
	if !listed || !strings.HasSuffix(d.kind, "List") {
		d.tree = tree
		d.strip()
		return []*document{d}
	}
	var list []*document
	if len(d.faults) > 0 {
		list = append(list, d)
	}
	each, isList := items.([]any)
	if !isList && items != nil {
		d.say("items: Invalid value: must be a list, not %s", noun(items))
		return []*document{d}
	}
	for i, item := range each {
		one := &document{number: d.number, item: fmt.Sprintf("items[%d]", i)}
		if d.item != "" {
			one.item = d.item + "." + one.item
		}
		list = append(list, one.unpack(item)...)
	}
	return list
}

// strip takes out what an API server writes into an object, of whatever version it is: nothing here goes by it.
func (d *document) strip() {
	delete(d.tree, "status")
	if m, isObject := d.tree["metadata"].(map[string]any); isObject {
		for _, key := range []string{"managedFields", "resourceVersion", "uid", "generation", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"} {
			delete(m, key)
		}
	}
}

// parse reads YAML as the API server's clients do (version 1.1, through JSON), tells of keys given twice and goes on
// with the last of them.
func (d *document) parse(c chunk) (root any, empty bool) {
	raw, err := yaml.YAMLToJSONStrict(c.text)
	if err != nil {
		var loose error
		raw, loose = yaml.YAMLToJSON(c.text)
		if loose != nil {
			d.say("cannot be read: %s", yamlText(loose, c.line-1))
			return nil, false
		}
		for _, text := range duplicateKeys(err, c.line-1) {
			d.say("strict decoding error: %s: keep one of them", text)
		}
	}
	if !alone(c.text) {
		d.say("has text after its end, which would be dropped: put a line --- in front of that text")
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&root); err != nil {
		d.say("cannot be read: %v", err)
		return nil, false
	}
	return root, root == nil && len(d.faults) == 0
}

// alone says whether nothing follows a document. Whatever reads YAML into a value stops at a document's end, so that
// more text would be dropped in silence.
func alone(text []byte) bool {
	dec := goyaml.NewDecoder(bytes.NewReader(text))
	var first, second any
	if err := dec.Decode(&first); err != nil {
		return true // empty, or a fault that is told elsewhere
	}
	return errors.Is(dec.Decode(&second), io.EOF)
}

var yamlLine = regexp.MustCompile(`\bline (\d+)`)

// yamlText makes a reader's error one for people: line numbers of a document become line numbers of the file, and Go
// types become words.
func yamlText(err error, by int) string {
	text := strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")
	text = strings.ReplaceAll(strings.TrimPrefix(text, "yaml: "), "\n", " ")
	switch value, unsupported := strings.CutPrefix(text, "json: unsupported value: "); {
	case unsupported:
		return "no field can hold the number " + value
	case strings.HasPrefix(text, "invalid map key"):
		return "a key must be a word, not a list or an object"
	}
	return yamlLine.ReplaceAllStringFunc(text, func(m string) string {
		n, err := strconv.Atoi(strings.TrimPrefix(m, "line "))
		if err != nil {
			return m
		}
		return "line " + strconv.Itoa(n+by)
	})
}

// duplicateKeys takes the reader's list of repeated keys apart.
func duplicateKeys(err error, by int) []string {
	var list []string
	for _, l := range strings.Split(err.Error(), "\n") {
		if strings.Contains(l, "already set in map") {
			list = append(list, yamlText(errors.New(strings.TrimSpace(l)), by))
		}
	}
	if list == nil {
		list = []string{yamlText(err, by)}
	}
	return list
}

// identify tells of a kind or version that isn't known.
func (d *document) identify() {
	kind := d.kind
	if kind == "" {
		d.say("%s", field.Required(field.NewPath("kind"), knownKinds()))
		return
	}
	for _, k := range kinds {
		if k.kind != kind {
			continue
		}
		path := field.NewPath("apiVersion")
		switch v := d.tree["apiVersion"].(type) {
		case nil:
			d.addShape(field.Required(path, fmt.Sprintf("%s is read in %s", kind, either(k.versions))))
		case string:
			if !slices.Contains(k.versions, v) {
				d.addShape(field.Invalid(path, v, fmt.Sprintf("%s is read in %s", kind, either(k.versions))))
			}
		}
		return
	}
	d.say("%s", field.Invalid(field.NewPath("kind"), kind, knownKinds()))
}

// decode checks the form of a document against a type, takes out what does not fit and fills in the rest, so that one
// fault doesn't hide the others.
func decode[T any](d *document) *T {
	out := new(T)
	tree, _ := d.shape(d.tree, reflect.TypeFor[T](), nil)
	raw, err := json.Marshal(tree)
	if err == nil {
		err = json.Unmarshal(raw, out)
	}
	if err != nil {
		d.say("cannot be read as %s: %v", d.kind, err)
	}
	return out
}
