package config

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

const configMapKind = "ConfigMap"

// adapterLabel marks the ConfigMaps that list adapters, by the value "true". The name is the reference's.
const adapterLabel = "inference.networking.k8s.io/bbr-managed"

// The keys of data in a ConfigMap that lists adapters.
const (
	baseModelKey = "baseModel"
	adaptersKey  = "adapters"
)

// configMap is what is read of a ConfigMap, version v1.
type configMap struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Immutable  *bool             `json:"immutable,omitempty"`
	Data       map[string]string `json:"data,omitempty"`
	BinaryData map[string]string `json:"binaryData,omitempty"`
}

// adapterMap is a ConfigMap that lists adapters.
type adapterMap struct {
	doc       *document
	baseModel string
	adapters  []string
}

// takeConfigMap checks a ConfigMap on its own and keeps it, if it lists adapters.
func (b *builder) takeConfigMap(d *document) {
	m := decode[configMap](d)
	c := &checks{}
	c.metadata(&m.ObjectMeta)
	a := adapterMap{doc: d, baseModel: m.Data[baseModelKey]}
	b.configMaps = append(b.configMaps, m)
	b.configMapDocs = append(b.configMapDocs, d)
	if m.Labels[adapterLabel] != "true" {
		d.add(c.errs...)
		return
	}
	path := field.NewPath("data")
	c.modelName(path.Child(baseModelKey), a.baseModel, "the model that the adapters are on top of: a scheduler's modelName")
	a.adapters = c.adapterList(path.Child(adaptersKey), m.Data[adaptersKey])
	b.adapterMaps = append(b.adapterMaps, a)
	d.add(c.errs...)
}

// adapterList reads YAML within YAML. Names that don't fit are left out, for their places to be told.
func (c *checks) adapterList(path *field.Path, text string) []string {
	const form = "a YAML list of names, such as \"- sql\\n- chat\""
	var root any
	if strings.TrimSpace(text) == "" {
		c.add(field.Required(path, form))
		return nil
	}
	if err := yaml.UnmarshalStrict([]byte(text), &root); err != nil {
		c.add(field.Invalid(path, field.OmitValueType{}, fmt.Sprintf("must be %s: %s", form, yamlText(err, 0))))
		return nil
	}
	list, isList := root.([]any)
	if !isList {
		c.add(field.Invalid(path, field.OmitValueType{}, fmt.Sprintf("must be %s, not %s", form, noun(root))))
		return nil
	}
	out := make([]string, len(list))
	for i, item := range list {
		name, isString := item.(string)
		if !isString {
			c.add(field.Invalid(path.Index(i), field.OmitValueType{}, "must be a string, not "+noun(item)+": put it in quotes"))
			continue
		}
		c.modelName(path.Index(i), name, "an adapter's name must not be empty")
		out[i] = name
	}
	return out
}

// pairConfigMaps checks that no two have one name.
func (b *builder) pairConfigMaps() {
	names := make(map[string]string)
	for i, m := range b.configMaps {
		b.unique(b.configMapDocs[i], names, m.Name)
	}
}

// configMapsNotHonoured tells of ConfigMaps that list no adapters, and of what those that do have besides.
func (b *builder) configMapsNotHonoured() {
	for i, m := range b.configMaps {
		note := func(path, why string) {
			b.config.NotHonoured = append(b.config.NotHonoured, Notice{Object: b.configMapDocs[i].ref(), Path: path, Why: why})
		}
		if m.Labels[adapterLabel] != "true" {
			note("metadata.labels", fmt.Sprintf("is not read: of ConfigMaps those that list adapters are, which have the label %s: \"true\"", adapterLabel))
			continue
		}
		for key := range sorted(m.Data) {
			if key != baseModelKey && key != adaptersKey {
				note("data."+key, "is not read: data has baseModel and adapters")
			}
		}
		if len(m.BinaryData) > 0 {
			note("binaryData", "is not read: data has baseModel and adapters")
		}
	}
}

// adapters gives each adapter name to one pool.
func (b *builder) adapters() {
	owner := make(map[string]string)
	for i := range b.config.Pools {
		owner[b.config.Pools[i].Model] = b.config.Pools[i].Scheduler
	}
	for i := range b.config.Pools {
		for j, a := range b.gateway.Spec.Schedulers[i].LoRAAdapters {
			b.adapter(owner, &b.config.Pools[i], a, b.gatewayDoc, at(i).Child("loraAdapters").Index(j))
		}
	}
	for _, m := range b.adapterMaps {
		path := field.NewPath("data")
		n := slices.IndexFunc(b.config.Pools, func(p Pool) bool { return p.Model == m.baseModel })
		if n < 0 {
			b.warn(m.doc.ref(), path.Child(baseModelKey), m.baseModel, "is the modelName of no scheduler, so that its adapters mean nothing here: %s", b.knownModels())
			continue
		}
		for j, a := range m.adapters {
			b.adapter(owner, &b.config.Pools[n], a, m.doc, path.Child(adaptersKey).Index(j))
		}
	}
}

func (b *builder) knownModels() string {
	names := make([]string, len(b.config.Pools))
	for i, p := range b.config.Pools {
		names[i] = printable(p.Model)
	}
	return "known are " + strings.Join(names, ", ")
}

// adapter gives a pool an adapter, unless the name has an owner.
func (b *builder) adapter(owner map[string]string, p *Pool, name string, d *document, path *field.Path) {
	switch first, taken := owner[name]; {
	case taken && first == p.Scheduler:
		b.warn(d.ref(), path, name, "is a name that scheduler %q has already", first)
	case taken:
		b.warn(d.ref(), path, name, "is a name of scheduler %q already, which gets the requests", first)
	default:
		owner[name] = p.Scheduler
		p.Adapters = append(p.Adapters, name)
	}
}
