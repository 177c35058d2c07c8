package config

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Fault is one thing that is wrong in a document or a flag.
type Fault struct {
	// Document counts from 1 and skips empty documents; 0 is the file as a whole, or a flag.
	Document int
	// Item is which one of a document that is a List, such as items[2]; empty where it is none.
	Item string
	// Kind and Name are empty where the document doesn't say.
	Kind string
	Name string
	// Text is the field path, the value, what is allowed, and what to do.
	Text string
}

// String is the fault on one line, with its document in front.
func (f Fault) String() string {
	if f.Document == 0 {
		return f.Text
	}
	at := place(f.Document, f.Item)
	switch {
	case f.Kind == "":
		return fmt.Sprintf("%s: %s", at, f.Text)
	case f.Name == "":
		return fmt.Sprintf("%s (%s): %s", at, f.Kind, f.Text)
	}
	return fmt.Sprintf("%s (%s %q): %s", at, f.Kind, f.Name, f.Text)
}

// place is where a document stands in its file.
func place(document int, item string) string {
	if item == "" {
		return fmt.Sprintf("document %d", document)
	}
	return fmt.Sprintf("document %d, %s", document, item)
}

// Faults is the error that Parse and FromFlags return: all there is to say, at once.
type Faults struct {
	// Source is the name given to Parse, or "--endpoint".
	Source string
	// List is never empty, and in document order.
	List []Fault
}

// Error has one line for the source and the count, and one for each fault.
func (f *Faults) Error() string {
	var b strings.Builder
	noun := "faults"
	if len(f.List) == 1 {
		noun = "fault"
	}
	fmt.Fprintf(&b, "cannot use %q: %d %s", f.Source, len(f.List), noun)
	for _, x := range f.List {
		b.WriteString("\n  ")
		b.WriteString(x.String())
	}
	return b.String()
}

// document is one YAML document on its way from text to a typed value.
type document struct {
	number int
	item   string // which of a List, such as items[2]; empty for a document of its own
	kind   string
	name   string
	tree   map[string]any // nil where the text cannot be read
	faults []Fault
	faulty []string // paths with a fault: what follows from one is not told again
}

// place is where the document stands in its file.
func (d *document) place() string { return place(d.number, d.item) }

// ref names the document in notices.
func (d *document) ref() string {
	return fmt.Sprintf("%s %q", d.kind, d.name)
}

// say records a fault that has no field, or that has its own grammar for it.
func (d *document) say(format string, args ...any) {
	d.faults = append(d.faults, Fault{Document: d.number, Item: d.item, Kind: d.kind, Name: d.name, Text: fmt.Sprintf(format, args...)})
}

// add records faults of fields, but for those that only follow from an earlier one: a port that is no number is not
// also missing.
func (d *document) add(errs ...*field.Error) {
	for _, e := range errs {
		if !d.follows(e) {
			d.say("%s", e.Error())
		}
	}
}

// addShape records a fault of form and remembers its path.
func (d *document) addShape(e *field.Error) {
	d.say("%s", e.Error())
	d.faulty = append(d.faulty, e.Field)
}

// follows says whether a fault is of a value, or lacks one, that was taken out.
func (d *document) follows(e *field.Error) bool {
	for _, f := range d.faulty {
		if inside(e.Field, f) || e.Type == field.ErrorTypeRequired && inside(f, e.Field) {
			return true
		}
	}
	return false
}

// inside says whether a path is another or leads through it.
func inside(path, other string) bool {
	rest, found := strings.CutPrefix(path, other)
	return found && (rest == "" || rest[0] == '.' || rest[0] == '[')
}
