package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/comm/settings"
)

func configCommand() *cobra.Command {
	var file string
	var asJSON bool
	c := &cobra.Command{
		Use:   "config [--file FILE] [--json]",
		Short: "Print every setting, what holds of it and where that came from",
		Long: `Print every setting, what holds of it and where that came from.

Nearest first: GCCL_ variables, the configuration file (TOML or JSON; --file, or GCCL_CONFIG), NCCL_ variables where they mean
something to gccl, ~/.nccl.conf (or NCCL_CONF_FILE), /etc/nccl.conf. A program's own comm.Config goes before all of them.

A mistake in what was said to gccl is an error (status 2) that names file and line, or the variable. What was said to NCCL never is.`,
		Example: `  gccl config
  gccl config --file gccl.toml --json`,
		Args: flagsOnly("--file"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			from := settings.Process()
			from.File = file
			_, set, err := comm.LoadConfig(from)
			if err != nil {
				return err
			}
			if asJSON {
				return printSetJSON(cmd.OutOrStdout(), set)
			}
			return printSet(cmd.OutOrStdout(), set)
		},
	}
	c.Flags().StringVar(&file, "file", "", "the configuration `file` (default: what GCCL_CONFIG names)")
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return c
}

func printSet(to io.Writer, set *settings.Set) error {
	w := bufio.NewWriter(to) // which remembers that a write failed
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SETTING\tVALUE\tFROM\tVARIABLE\tNOTE")
	for _, v := range set.Values {
		note := ""
		if v.Setting.Unused != "" {
			note = "\tnot used in this build, " + v.Setting.Unused
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s%s\n", v.Setting.Name, printable(cmp.Or(v.Text, v.Setting.Default, "not set")), printable(cmp.Or(v.Source, "default")), v.Setting.Env, note)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, part := range []struct {
		title string
		lines []string
	}{{"Warnings", set.Warnings}, {"Said to NCCL and understood", set.Honoured}, {"Said to NCCL and ignored", set.Ignored}} {
		for i, text := range part.lines {
			if i == 0 {
				fmt.Fprintf(w, "\n%s:\n", part.title)
			}
			fmt.Fprintf(w, "  %s\n", text)
		}
	}
	return w.Flush()
}

// settingRow is a setting as JSON.
type settingRow struct {
	Name     string `json:"name"`
	Value    any    `json:"value"` // text, number or truth value; null when only the default holds
	Default  string `json:"default,omitempty"`
	From     string `json:"from"`
	Variable string `json:"variable"`
	NCCL     string `json:"nccl_variable,omitempty"`
	Used     bool   `json:"used"`
	Why      string `json:"unused_because,omitempty"`
}

func printSetJSON(w io.Writer, set *settings.Set) error {
	out := struct {
		Settings []settingRow `json:"settings"`
		Warnings []string     `json:"warnings"`
		Honoured []string     `json:"nccl_honoured"`
		Ignored  []string     `json:"nccl_ignored"`
	}{Warnings: nonNil(set.Warnings), Honoured: nonNil(set.Honoured), Ignored: nonNil(set.Ignored)}
	for _, v := range set.Values {
		s := v.Setting
		out.Settings = append(out.Settings, settingRow{Name: s.Name, Value: typed(v), Default: s.Default, From: cmp.Or(v.Source, "default"),
			Variable: s.Env, NCCL: s.NCCL, Used: s.Unused == "", Why: s.Unused})
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(out)
}

// typed is a value in the type that it has in a file.
func typed(v settings.Value) any {
	switch {
	case v.Source == "":
		return nil
	case v.Setting.Kind == settings.Whole:
		n, _ := strconv.ParseInt(v.Text, 10, 64)
		return n
	case v.Setting.Kind == settings.Switch:
		return v.Text == "true"
	}
	return v.Text
}

// printable keeps a value from disturbing the table.
func printable(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}

func nonNil(list []string) []string { return append([]string{}, list...) }
