package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/sluice-gateway/sluice/config"
	"github.com/sluice-gateway/sluice/translate"
)

// Tried is what an API server says of an object that it was shown and did not keep, and what the controller would say of it.
type Tried struct {
	// Place is where the object stands in the file, Kind, Namespace and Name are its own; the namespace is empty where its kind
	// has none.
	Place, Kind, Namespace, Name string
	// Faults are why it is refused, none where it is taken. Notes are what is as well to know: what can't be told from here, or
	// has no effect.
	Faults, Notes []string

	object *config.Object
	// legible: nothing is wrong but fields that nobody knows and keys given twice, so that the controller's code has its say, too.
	legible bool
}

// Try shows objects of documents to the API server, as an apply of each that changes nothing: definitions, admission and rights
// have their say. Where it takes them, the controller's own code says what that would refuse, were all of them applied to what is
// in the cluster; settings are a controller's by its arguments. An error is of the connection; what is wrong with an object is in
// its answer, and what could not be looked at in the notes.
func (c *Cluster) Try(ctx context.Context, docs []byte, settings func(args []string) (translate.Settings, error)) (list []Tried, notes []string, err error) {
	objects := config.Objects(docs)
	for i := range objects {
		o := &objects[i]
		t := Tried{Place: o.Place(), Kind: o.Kind, Name: o.Name, object: o}
		for _, f := range o.Unread {
			t.Faults = append(t.Faults, f.Text)
		}
		if o.Tree != nil {
			if err := c.try(ctx, &t); err != nil {
				return list, nil, err
			}
		}
		list = append(list, t)
	}
	notes, err = c.judge(ctx, list, settings)
	return list, notes, err
}

// try shows one object, and says of one that is taken what package config has against it.
func (c *Cluster) try(ctx context.Context, t *Tried) error {
	var o metav1.PartialObjectMetadata
	raw, err := json.Marshal(t.object.Tree)
	if err != nil {
		return fmt.Errorf("cannot write down %s: %w", t.Place, err)
	}
	if err := json.Unmarshal(raw, &o); err != nil {
		t.Faults = append(t.Faults, fmt.Sprintf("is no object of Kubernetes: %v", err))
		return nil
	}
	own := t.object.Faults()
	rest, err := c.show(ctx, t, &o, raw, metav1.FieldValidationStrict)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(rest, unknownFields.MatchString) { // with such it says nothing else
		t.Faults = append(t.Faults, hinted(rest, own)...)
		if rest, err = c.show(ctx, t, &o, raw, metav1.FieldValidationIgnore); err != nil {
			return err
		}
		rest = slices.DeleteFunc(rest, func(fault string) bool { return strings.Contains(fault, unknownField) })
	}
	if len(rest) == 0 {
		for _, f := range own {
			if !slices.Contains(t.Faults, f.Text) {
				rest = append(rest, f.Text)
			}
		}
	}
	t.Faults, t.legible = append(t.Faults, rest...), len(rest) == 0
	return nil
}

// show is what the API server has against an object, where fields that it does not know are a fault, or not.
func (c *Cluster) show(ctx context.Context, t *Tried, o *metav1.PartialObjectMetadata, raw []byte, unknown string) ([]string, error) {
	base, resource, namespaced, err := c.resource(ctx, o.APIVersion, o.Kind)
	switch {
	case apierrors.IsNotFound(err), err == nil && resource == "":
		return []string{unknownKind(o.Kind, o.APIVersion)}, nil
	case err != nil:
		return nil, fmt.Errorf("cannot ask the API server for %s: %w", o.APIVersion, err)
	case o.Name == "":
		return []string{"metadata.name: Required value: a document needs a name"}, nil
	}
	if namespaced {
		t.Namespace = cmp.Or(o.Namespace, c.Namespace)
	}
	if !o.CreationTimestamp.IsZero() { // another one's, where the object was made anew
		if raw, err = withoutCreation(t.object.Tree); err != nil {
			return nil, err
		}
	}
	dry := func(r *rest.Request) *rest.Request {
		return r.Param("dryRun", metav1.DryRunAll).Param("fieldManager", "kubectl-sluice").Param("fieldValidation", unknown).Body(raw)
	}
	_, err = answer(ctx, dry(c.client.Post().AbsPath(pathTo(base, t.Namespace, resource)...).SetHeader("Content-Type", "application/json")))
	if apierrors.IsAlreadyExists(err) { // an apply says less of fields that are not known
		_, err = answer(ctx, dry(c.client.Patch(types.ApplyYAMLPatchType).AbsPath(pathTo(base, t.Namespace, resource, o.Name)...).Param("force", "true")))
	}
	return refusal(err)
}

// unknownKind says that the API server lacks a kind.
func unknownKind(kind, apiVersion string) string {
	return fmt.Sprintf("the API server does not know %s of %s: install what brings it (`kubectl sluice doctor` says what is missing)", kind, apiVersion)
}

// withoutCreation is an object without the time of its creation.
func withoutCreation(tree map[string]any) ([]byte, error) {
	metadata, _ := tree["metadata"].(map[string]any)
	tree, metadata = maps.Clone(tree), maps.Clone(metadata)
	delete(metadata, "creationTimestamp")
	tree["metadata"] = metadata
	return json.Marshal(tree)
}

// resource finds out where objects of a kind are.
func (c *Cluster) resource(ctx context.Context, apiVersion, kind string) (base, resource string, namespaced bool, err error) {
	base = basePath(apiVersion)
	var list metav1.APIResourceList
	if err := c.read(ctx, &list, nil, base); err != nil {
		return "", "", false, err
	}
	for _, r := range list.APIResources {
		if r.Kind == kind && !strings.ContainsRune(r.Name, '/') {
			return base, r.Name, r.Namespaced, nil
		}
	}
	return base, "", false, nil
}

// unknownField is what an API server says of an apply with one, as if the fault were its own.
const unknownField = "field not declared in schema"

// refusal takes an API server's answer apart: each fault for itself.
func refusal(err error) ([]string, error) {
	var status *apierrors.StatusError
	switch {
	case err == nil:
		return nil, nil
	case !errors.As(err, &status) || status.ErrStatus.Code >= 500 && !strings.Contains(err.Error(), unknownField):
		return nil, fmt.Errorf("cannot show it to the API server: %w", err)
	}
	var faults []string
	if d := status.ErrStatus.Details; d != nil {
		for _, cause := range d.Causes {
			if cause.Field == "" {
				faults = append(faults, cause.Message)
				continue
			}
			faults = append(faults, cause.Field+": "+cause.Message)
		}
	}
	if faults == nil {
		faults = []string{status.ErrStatus.Message}
	}
	return faults, nil
}

// unknownFields are the fields that an API server names as unknown, all of a document in one sentence.
var unknownFields = regexp.MustCompile(`unknown field "[^"]+"`)

// hinted are an API server's faults, each unknown field for itself and with what package config says may have been meant.
func hinted(faults []string, own []config.Fault) []string {
	var list []string
	for _, fault := range faults {
		fields := unknownFields.FindAllString(fault, -1)
		for _, field := range fields {
			text := "strict decoding error: " + field
			if i := slices.IndexFunc(own, func(f config.Fault) bool { return strings.HasPrefix(f.Text, text) }); i >= 0 {
				text = own[i].Text
			}
			list = append(list, text)
		}
		if fields == nil {
			list = append(list, fault)
		}
	}
	return list
}
