// Package config reads the configuration of the daemon: one YAML file, then
// the environment, then flags; the later wins. It is checked as a whole, and
// every error names the line it stands on, or the variable or flag it came from.
//
// The schema is the message runnerd.config.v1.Config, whose comments are the
// reference; docs/configuration.md shows it as a whole. Without a file, the
// configuration is [Demo]: a scripted agent that needs nothing else.
package config
