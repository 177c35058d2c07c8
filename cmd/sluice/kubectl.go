package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-gateway/sluice/kube"
	"github.com/sluice-gateway/sluice/translate"
)

// pluginName is what kubectl looks for on PATH when someone says kubectl sluice.
const pluginName = "kubectl-sluice"

// program is the command that the binary is under the name it was started by.
func program(name string) *cobra.Command {
	if strings.TrimSuffix(filepath.Base(name), ".exe") != pluginName {
		return root()
	}
	cmd := kubectlCommand()
	cmd.Use, cmd.Annotations = pluginName, map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl sluice"}
	return cmd
}

// clusterOptions are the flags that kubectl has, too.
type clusterOptions struct {
	kubeconfig, context, namespace string
}

func (o *clusterOptions) open() (*kube.Cluster, error) {
	return kube.OpenCluster(o.kubeconfig, o.context, o.namespace)
}

func kubectlCommand() *cobra.Command {
	o := &clusterOptions{}
	cmd := &cobra.Command{
		Use:   "kubectl",
		Short: "Look into a cluster, as kubectl sluice does",
		Long: `What kubectl sluice does, with the rights of whoever asks: say why requests went where they went, show endpoints and how busy they are, find
what keeps a gateway from working, and try documents out. Install this binary under the name kubectl-sluice in a folder of PATH, or by krew.`,
		Example: `  kubectl sluice doctor
  kubectl sluice top
  kubectl sluice explain gateway --last 3
  kubectl sluice check -f gateway.yaml`,
		Version:       buildVersion(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.SetFlagErrorFunc(flagFault)
	f := cmd.PersistentFlags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig `FILE` (default: $KUBECONFIG, else ~/.kube/config)")
	f.StringVar(&o.context, "context", "", "context `NAME` in it (default: its current one)")
	f.StringVarP(&o.namespace, "namespace", "n", "", "namespace `NAME` (default: the context's)")
	cmd.AddCommand(kubectlExplainCommand(o), kubectlTopCommand(o), kubectlDoctorCommand(o), kubectlCheckCommand(o))
	return cmd
}

func kubectlDoctorCommand(o *clusterOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Find what keeps gateways from working, and say what to do",
		Long: `Doctor looks at what gateways need, in the order in which one thing needs the other: the definitions of kinds, the controller, the
GatewayClass, Envoy Gateway and whether it asks our extension server, every configuration's conditions, and every picker: whether it answers, sees
its peers and counts on its endpoints. What you may not look at is said and holds nothing up. It exits with 1 where something fails.`,
		Example: "  kubectl sluice doctor",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.open()
			if err != nil {
				return err
			}
			return writeFindings(cmd.OutOrStdout(), c.Examine(cmd.Context()))
		},
	}
}

// writeFindings prints a line for each, and fails where one does.
func writeFindings(out io.Writer, list []kube.Finding) error {
	failed := 0
	for _, f := range list {
		if f.Level == kube.LevelFail {
			failed++
		}
		if _, err := fmt.Fprintf(out, "%-4s  %s: %s\n", f.Level, f.What, f.Text); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d findings keep gateways from working", failed, len(list))
	}
	return nil
}

func kubectlCheckCommand(o *clusterOptions) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "check -f FILE",
		Short: "Try documents out at the API server, without changing anything",
		Long: `Check shows every object of a file to the API server, as an apply that changes nothing: it says what the definitions, admission policies
and your rights have against it. Of what is taken it says what the controller would refuse, by the controller's own code: for each gateway that
the file has, or has something for, with what is in the cluster beside it. What can't be told from here, and what would have no effect, is a note.
A file may be what kubectl get -o yaml prints. It exits with 1 where something is wrong.`,
		Example: "  kubectl sluice check -f gateway.yaml",
		Args:    noArgs("-f FILE"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.open()
			if err != nil {
				return err
			}
			return tryDocuments(cmd.Context(), c, file, cmd)
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "`FILE` with the documents, - for the standard input")
	return cmd
}

// tryDocuments asks the API server, and the controller's code.
func tryDocuments(ctx context.Context, c *kube.Cluster, file string, cmd *cobra.Command) error {
	if file == "" {
		return errors.New("nothing to check: name a file with -f")
	}
	docs, err := documentsOf(file, cmd.InOrStdin())
	if err != nil {
		return err
	}
	tried, notes, err := c.Try(ctx, docs, settingsOf)
	if err != nil {
		return err
	}
	return writeTried(cmd.OutOrStdout(), file, tried, notes)
}

// writeTried prints what is said of each object, and fails where something is wrong.
func writeTried(out io.Writer, file string, tried []kube.Tried, notes []string) error {
	var b strings.Builder
	wrong := 0
	for _, t := range tried {
		what := triedName(&t)
		if wrong += len(t.Faults); len(t.Faults) == 0 {
			fmt.Fprintf(&b, "ok    %s: would be taken\n", what)
		}
		for _, fault := range t.Faults {
			fmt.Fprintf(&b, "fail  %s: %s\n", what, fault)
		}
		for _, note := range t.Notes {
			fmt.Fprintf(&b, "note  %s: %s\n", what, note)
		}
	}
	for _, note := range notes {
		fmt.Fprintf(&b, "note  %s\n", note)
	}
	if _, err := io.WriteString(out, b.String()); err != nil {
		return err
	}
	switch {
	case len(tried) == 0:
		return fmt.Errorf("cannot find a document in %q", file)
	case wrong == 1:
		return fmt.Errorf("1 fault in %q", file)
	case wrong > 1:
		return fmt.Errorf("%d faults in %q", wrong, file)
	}
	return nil
}

// triedName says which document is meant: its kind, namespace and name as far as it has them, and where it stands.
func triedName(t *kube.Tried) string {
	name := t.Name
	if t.Namespace != "" {
		name = t.Namespace + "/" + name
	}
	if who := strings.TrimSpace(t.Kind + " " + name); who != "" {
		return who + ", " + t.Place
	}
	return t.Place
}

// settingsOf are a controller's settings, by its arguments; flags of another version's are passed over.
func settingsOf(args []string) (translate.Settings, error) {
	o := new(controlOptions)
	f := pflag.NewFlagSet("control", pflag.ContinueOnError)
	f.ParseErrorsAllowlist.UnknownFlags = true
	controlFlags(f, o)
	err := f.Parse(args)
	return o.settings, err
}

func documentsOf(file string, in io.Reader) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(in)
	}
	docs, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read documents: %w", err)
	}
	return docs, nil
}
