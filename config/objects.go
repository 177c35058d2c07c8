package config

import (
	"slices"
	"strings"
)

// Object is one object of a file: a document, or an item of one that is a List.
type Object struct {
	// APIVersion, Kind and Name are empty where the object doesn't say.
	APIVersion, Kind, Name string
	// Tree is what it says, without what an API server writes into objects, numbers as json.Number; nil where it can't be
	// read.
	Tree map[string]any
	// Unread are why it can't be read, or not as it stands.
	Unread []Fault

	number int
	item   string
}

// Objects reads all objects of a file, of whatever kind. It refuses nothing: what is wrong stands with each.
func Objects(docs []byte) []Object {
	var list []Object
	for _, d := range objects(docs) {
		version, _ := d.tree["apiVersion"].(string)
		list = append(list, Object{APIVersion: version, Kind: d.kind, Name: d.name, Tree: d.tree, Unread: d.faults, number: d.number, item: d.item})
	}
	return list
}

// Place is where the object stands in its file, such as document 1, items[2].
func (o *Object) Place() string { return place(o.number, o.item) }

// Faults are what Parse would say of the object by itself, none of one whose kind it doesn't read, in any version.
func (o *Object) Faults() []Fault {
	d := &document{number: o.number, item: o.item, kind: o.Kind, name: o.Name, tree: o.Tree}
	if !isRead(o.APIVersion, o.Kind) {
		return nil
	}
	d.identify()
	b := &builder{config: new(Config)}
	b.take(d)
	return d.faults
}

// isRead reports whether Parse reads documents of a kind, if perhaps in another version: Kubernetes has Endpoints, too.
func isRead(apiVersion, kind string) bool {
	group, _, _ := strings.Cut(apiVersion, "/")
	for _, k := range kinds {
		if k.kind == kind {
			return slices.ContainsFunc(k.versions, func(v string) bool { return v == apiVersion || strings.HasPrefix(v, group+"/") })
		}
	}
	return false
}
