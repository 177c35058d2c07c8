package v1alpha1

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// TestTextsAreSentences: what kubectl explain says of a kind or a field of ours is sentences.
func TestTextsAreSentences(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	fset, fields := token.NewFileSet(), 0
	check := func(n ast.Node, name string, doc *ast.CommentGroup) {
		var words []string
		for _, line := range strings.Split(doc.Text(), "\n") {
			if !strings.HasPrefix(line, "+") {
				words = append(words, strings.Fields(line)...)
			}
		}
		text := strings.Join(words, " ")
		if text == "" || !unicode.IsUpper(rune(text[0])) || !strings.HasSuffix(text, ".") {
			t.Errorf("%s: %s: got %q, want sentences", fset.Position(n.Pos()), name, text)
		}
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "zz_") {
			continue
		}
		file, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			s, ok := n.(*ast.StructType)
			if !ok {
				return true
			}
			for _, f := range s.Fields.List {
				if len(f.Names) == 1 && f.Names[0].Name != "Items" && f.Names[0].IsExported() {
					check(f, f.Names[0].Name, f.Doc)
					fields++
				}
			}
			return true
		})
		for _, d := range file.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.TYPE {
				check(g, g.Specs[0].(*ast.TypeSpec).Name.Name, g.Doc)
			}
		}
	}
	if fields < 100 {
		t.Errorf("got %d fields, want all of them", fields)
	}
}

// TestMarkersAgree holds the markers, which a custom resource definition is made from, against the constants, which
// documents are checked by.
func TestMarkersAgree(t *testing.T) {
	var text string
	for _, name := range []string{"inferencegatewayconfig.go", "endpoints.go", "gatewaypolicy.go", "globalgateway.go"} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text += string(b)
	}
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	for _, marker := range []string{
		`message="` + MessageBBRRequired + `"`,
		`message="` + MessageModelNameUnique + `"`,
		`message="` + MessageWeightsOrConfigMap + `"`,
		`message="` + MessageLRUNeedsLLMD + `"`,
		`message="` + MessageAudiencesOrClaims + `"`,
		`message="` + MessageAPIKeySource + `"`,
		`message="` + MessageTopologyWhole + `"`,
		"Pattern=`" + DurationPattern + "`",
		"Pattern=`" + HTTPSPattern + "`", `Pattern="` + SessionNamePattern + `"`, "matches('" + VariablePattern + "')",
		"MaxItems=" + n(MaxEndpoints), "MaxLength=" + n(MaxAddress) + "\n", "MaxLength=" + n(MaxVariableName) + "\n\tEnv", "MaxLength=" + n(MaxPath) + "\n\tFile",
		"default=" + n(MaxRequestBodyBytes), "Maximum=" + n(MaxRequestBodyBytes),
		"default=" + n(int64(DefaultReplicas)) + "\n\t// +kubebuilder:validation:Minimum=1\n\tReplicas",
		"default=" + n(int64(DefaultTargetPort)), "default=" + n(int64(DefaultKVEventsPort)), "default=" + n(int64(DefaultKVReplayPort)),
		"Maximum=" + n(int64(MaxRanks)) + "\n\tRanks",
		"MaxItems=" + n(MaxSchedulers), "MaxItems=" + n(MaxAdapters), "MaxItems=" + n(MaxAudiences),
		"MaxItems=" + n(MaxRequiredClaims), "MaxItems=" + n(MaxClaimValues),
		"MaxLength=" + n(MaxSchedulerName), "MaxLength=" + n(MaxModelName), "items:MaxLength=" + n(MaxClaimValue),
		"Maximum=" + n(int64(MaxLogLevel)),
		"default=" + n(int64(DefaultQueueWeight)) + "\n\t// +kubebuilder:validation:Minimum=0\n\tQueue",
		"default=" + n(int64(DefaultKVCacheWeight)) + "\n\t// +kubebuilder:validation:Minimum=0\n\tKVCache",
		"default=" + n(int64(DefaultPrefixWeight)) + "\n\t// +kubebuilder:validation:Minimum=0\n\tPrefix",
		`default="` + DefaultPickerConfigKey + `"`,
		`message="` + MessageWeightsSum + `"`, `message="` + MessageRegions + `"`, `message="` + MessageLimit + `"`,
		"Pattern=`" + LabelNamePattern + "`", "Pattern=`" + GatewayIDPattern + "`", "Pattern=`" + ClusterARNPattern + "`", "Pattern=`" + MemberPattern + "`",
		"MaxItems=" + n(MaxMembers), "MaxItems=" + n(MaxLimits) + "\n\tLimits", "MaxLength=" + n(MaxGatewayID), "MaxLength=" + n(MaxARN), "MaxLength=" + n(MaxURL),
		"Maximum=" + n(MaxPerMinute), "default=" + n(int64(DefaultMemberCost)), `default="` + DefaultRampText + `"`,
		`message="` + MessageHeaderOrCookie + `"`,
		"default=" + n(DefaultSessionCost), "Maximum=" + n(int64(MaxSessionCost)), "default=" + n(int64(DefaultSessionWeight)),
		"Maximum=" + n(int64(MaxSessionWeight)), "MaxLength=" + n(MaxSessionName), `default="` + DefaultSessionTTLText + `"`,
	} {
		if !strings.Contains(text, marker) {
			t.Errorf("got no marker %q", marker)
		}
	}
}

// TestDefaultLeavesLatencyAlone: absent weights stay absent, an empty block is completed.
func TestDefaultLeavesLatencyAlone(t *testing.T) {
	c := InferenceGatewayConfig{Spec: InferenceGatewayConfigSpec{Schedulers: []Scheduler{{}, {Weights: &Weights{}}}}}
	c.Default()
	s := c.Spec.Schedulers
	if s[0].Weights != nil {
		t.Errorf("got weights %v, want none", s[0].Weights)
	}
	if w := s[1].Weights; *w.Queue != 2 || *w.KVCache != 2 || *w.Prefix != 3 || w.LRU != nil {
		t.Errorf("got weights %d %d %d %v, want 2 2 3 and no lru", *w.Queue, *w.KVCache, *w.Prefix, w.LRU)
	}
	if *s[0].TargetPort != 8000 || s[0].AppProtocol != "http" || s[0].Scheduler != "llm-d" || s[0].EngineType != "vllm" || *s[0].Replicas != 2 {
		t.Errorf("got %d %s %s %s %d", *s[0].TargetPort, s[0].AppProtocol, s[0].Scheduler, s[0].EngineType, *s[0].Replicas)
	}
	if *c.Spec.BBR.Replicas != 2 || *c.Spec.BBR.MaxRequestBodyBytes != 268435456 || c.Spec.BBR.Enabled != nil {
		t.Errorf("got %d %d %v", *c.Spec.BBR.Replicas, *c.Spec.BBR.MaxRequestBodyBytes, c.Spec.BBR.Enabled)
	}
}
