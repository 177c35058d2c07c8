package kube

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	yamlreader "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// Tried is what an API server says of a document that it was shown and did not keep.
type Tried struct {
	// Kind and Name are the document's.
	Kind, Name string
	// Faults are why it refuses the document, none where it takes it.
	Faults []string
}

// Try shows documents to the API server, as an apply of each that changes nothing: definitions, admission and rights have
// their say. An error is of the text or the connection; what is wrong with a document is in its answer.
func (c *Cluster) Try(ctx context.Context, docs []byte) ([]Tried, error) {
	var list []Tried
	reader := yamlreader.NewYAMLReader(bufio.NewReader(bytes.NewReader(docs)))
	for {
		doc, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return list, fmt.Errorf("cannot read document %d: %w", len(list)+1, err)
		}
		var o metav1.PartialObjectMetadata
		raw, err := yaml.YAMLToJSON(doc)
		if err != nil {
			return list, fmt.Errorf("cannot read document %d: %w", len(list)+1, err)
		}
		if bytes.Equal(bytes.TrimSpace(raw), []byte("null")) {
			continue
		}
		if err := json.Unmarshal(raw, &o); err != nil {
			list = append(list, Tried{Kind: o.Kind, Name: o.Name, Faults: []string{fmt.Sprintf("document %d is no object of Kubernetes: %v", len(list)+1, err)}})
			continue
		}
		faults, err := c.try(ctx, &o, doc)
		if err != nil {
			return list, err
		}
		list = append(list, Tried{Kind: o.Kind, Name: o.Name, Faults: faults})
	}
}

// try shows one document.
func (c *Cluster) try(ctx context.Context, o *metav1.PartialObjectMetadata, doc []byte) ([]string, error) {
	base, resource, namespaced, err := c.resource(ctx, o.APIVersion, o.Kind)
	switch {
	case apierrors.IsNotFound(err), err == nil && resource == "":
		return []string{fmt.Sprintf("the API server does not know %s of %s: install what brings it (`kubectl sluice doctor` says what is missing)", o.Kind, o.APIVersion)}, nil
	case err != nil:
		return nil, fmt.Errorf("cannot ask the API server for %s: %w", o.APIVersion, err)
	case o.Name == "":
		return []string{"metadata.name: Required value: a document needs a name"}, nil
	}
	namespace := ""
	if namespaced {
		if namespace = o.Namespace; namespace == "" {
			namespace = c.Namespace
		}
	}
	dry := func(r *rest.Request) *rest.Request {
		return r.Param("dryRun", metav1.DryRunAll).Param("fieldManager", "kubectl-sluice").Param("fieldValidation", metav1.FieldValidationStrict).Body(doc)
	}
	_, err = answer(ctx, dry(c.client.Post().AbsPath(pathTo(base, namespace, resource)...).SetHeader("Content-Type", "application/yaml")))
	if apierrors.IsAlreadyExists(err) { // an apply says less of fields that are not known
		_, err = answer(ctx, dry(c.client.Patch(types.ApplyYAMLPatchType).AbsPath(pathTo(base, namespace, resource, o.Name)...).Param("force", "true")))
	}
	return refusal(err)
}

// resource finds out where objects of a kind are.
func (c *Cluster) resource(ctx context.Context, apiVersion, kind string) (base, resource string, namespaced bool, err error) {
	if base = "/apis/" + apiVersion; apiVersion == "v1" {
		base = pathCore
	}
	var list metav1.APIResourceList
	if err := c.read(ctx, &list, nil, base); err != nil {
		return "", "", false, err
	}
	for _, r := range list.APIResources {
		if r.Kind == kind && !bytes.ContainsRune([]byte(r.Name), '/') {
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
