// Command controlplane is etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl
// in one binary, for tests and the demo: which of them it is follows from the name that it is
// called by. Nothing is changed in any of them.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
)

var commands = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubectl":                 kubectl.NewDefaultKubectlCommand,
}

func main() {
	name := filepath.Base(os.Args[0])
	if name == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	command, known := commands[name]
	if !known {
		names := []string{"etcd"}
		for name := range commands {
			names = append(names, name)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "%s is none of %s: call it by a link of that name\n", name, strings.Join(names, ", "))
		os.Exit(2)
	}
	if name == "kubectl" {
		// Says what is wrong by itself, and ends with a code of its own.
		util.CheckErr(cli.RunNoErrOutput(command()))
		return
	}
	os.Exit(cli.Run(command()))
}
