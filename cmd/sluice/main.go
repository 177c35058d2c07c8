// Command sluice is an inference gateway for fleets of GPU model servers: one OpenAI-compatible address that sees what the
// engines are doing and sends each request where it will be answered soonest.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	keepPanics("/dev/termination-log")
	log.SetOutput(io.Discard)    // net/http tells it of strange answers, with their text; bodies are never logged
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := program(os.Args[0]).ExecuteContext(ctx); err != nil {
		if !errors.Is(err, errSaid) {
			fmt.Fprintln(os.Stderr, "sluice:", err)
		}
		os.Exit(1)
	}
}

// keepPanics has what Go prints of a panic written to a file, too, if it is there. In a pod that is what kubectl describe shows of a
// container that has ended: the last 4096 bytes of it, where of a log it would be 2048, in which a stack leaves no room for what
// was the matter. What can't be had is no reason not to start.
func keepPanics(file string) {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return
	}
	defer f.Close() // the runtime has its own copy
	_ = debug.SetCrashOutput(f, debug.CrashOptions{})
}

// errSaid ends a command that has told the reason already.
var errSaid = errors.New("said already")

// noArgs refuses arguments and says which flags take them.
func noArgs(flags string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return fmt.Errorf("cannot use argument %q: %s takes %s", args[0], cmd.Name(), flags)
		}
		return nil
	}
}

// flagFault says where the flags are listed.
func flagFault(cmd *cobra.Command, err error) error {
	return fmt.Errorf("%w: `%s --help` lists the flags", err, cmd.CommandPath())
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sluice",
		Short: "An inference gateway that sends each request where it will be answered soonest",
		Long: `Sluice is an inference gateway for fleets of model servers (vLLM, SGLang, TGI, llama.cpp, TensorRT-LLM): one
OpenAI-compatible address that sees what the engines are doing and sends each request where it will be answered soonest.`,
		Example: `  sluice serve --endpoint llama=10.0.0.1:8000,10.0.0.2:8000
  sluice serve -f gateway.yaml
  sluice check -f gateway.yaml
  sluice explain --last 3`,
		Version:       buildVersion(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.SetFlagErrorFunc(flagFault)
	plugin := kubectlCommand()
	// The library takes a name that no command below the first has for an argument, and shows the help.
	plugin.Args, plugin.RunE = cobra.NoArgs, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(demoCommand(), serveCommand(), pickCommand(), simCommand(), benchCommand(), checkCommand(), envoyCommand(), controlCommand(), explainCommand(), replayCommand(), plugin, versionCommand())
	return cmd
}
