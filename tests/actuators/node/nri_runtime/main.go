// The side of a container runtime of NRI, for tests: the library that containerd and CRI-O use.
//
// Called with the path of the socket to listen on. Each line of the input is a JSON object with a
// request of NRI as "create" or "update"; the answer to it, with what all plugins adjusted, is a
// line of the output. The end of the input ends the program.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	nri "github.com/containerd/nri/pkg/adaptation"
)

type line struct {
	Create *nri.CreateContainerRequest `json:"create"`
	Update *nri.UpdateContainerRequest `json:"update"`
}

type pluginReport struct {
	Synchronized int    `json:"synchronized"`
	Error        string `json:"error,omitempty"`
}

func main() {
	out := json.NewEncoder(os.Stdout)
	ctx := context.Background()
	hasStarted := false
	synchronize := func(ctx context.Context, call nri.SyncCB) error {
		if !hasStarted { // with the plugins that the runtime starts itself: none
			hasStarted = true
			return nil
		}
		// More than one message may hold.
		pods := make([]*nri.PodSandbox, 0, 3000)
		filler := string(make([]byte, 2048))
		for i := 0; i < cap(pods); i++ {
			labels := map[string]string{"filler": filler}
			pods = append(pods, &nri.PodSandbox{Id: fmt.Sprint(i), Labels: labels})
		}
		updates, err := call(ctx, pods, nil)
		report := pluginReport{Synchronized: len(updates)}
		if err != nil {
			report.Error = err.Error()
		}
		must(out.Encode(report))
		return err
	}
	update := func(context.Context, []*nri.ContainerUpdate) ([]*nri.ContainerUpdate, error) {
		return nil, nil
	}
	runtime, err := nri.New("test-runtime", "1.2.3", synchronize, update,
		nri.WithSocketPath(os.Args[1]), nri.WithPluginPath("/nonexistent"))
	must(err)
	must(runtime.Start())
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var asked line
		must(json.Unmarshal(in.Bytes(), &asked))
		var answer any
		if asked.Create != nil {
			answer, err = runtime.CreateContainer(ctx, asked.Create)
		} else {
			answer, err = runtime.UpdateContainer(ctx, asked.Update)
		}
		must(err)
		must(out.Encode(answer))
	}
	runtime.Stop()
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
