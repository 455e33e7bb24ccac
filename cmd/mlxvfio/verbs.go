package main

import "github.com/spf13/cobra"

// verbs are the commands that exist, in the order of the help.
func (a *app) verbs() []*cobra.Command {
	var all []*cobra.Command
	in := func(group string, verbs ...*cobra.Command) {
		for _, v := range verbs {
			v.GroupID = group
		}
		all = append(all, verbs...)
	}
	in(groupMachine, a.listVerb(), a.doctorVerb(), a.bindVerb(), a.unbindVerb())
	in(groupFunction, a.infoVerb(), a.capsVerb(), a.selftestVerb(), a.execVerb(), a.regVerb())
	in(groupData, a.atomicVerb(), a.litmusVerb(), a.benchVerb(), a.microbenchVerb())
	in(groupWatch, a.healthVerb(), a.traceVerb())
	in(groupModel, a.serveVerb(), a.tellVerb())
	in(groupProgram, a.completionVerb(), a.manVerb(), a.versionVerb())
	return all
}
