package main

import "github.com/spf13/cobra"

// verbs are the commands that exist, in the order of the help.
func (a *app) verbs() []*cobra.Command {
	return []*cobra.Command{
		a.listVerb(),
		a.doctorVerb(),
		a.bindVerb(),
		a.unbindVerb(),
		a.infoVerb(),
		a.capsVerb(),
		a.selftestVerb(),
		a.execVerb(),
		a.regVerb(),
		a.atomicVerb(),
		a.litmusVerb(),
		a.benchVerb(),
		a.microbenchVerb(),
		a.traceVerb(),
		a.healthVerb(),
		a.serveVerb(),
		a.tellVerb(),
		a.versionVerb(),
	}
}
