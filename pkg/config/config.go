package config

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
)

// Demo is the configuration that holds where no file is named: an agent demo
// with a scripted decide service and tool host that are part of runnerd.
//
//go:embed demo.yaml
var Demo []byte

// Defaults of the fields that are absent. Those of an agent stand in spec.go.
const (
	DefaultListen        = "127.0.0.1:7780"
	DefaultMaxActiveRuns = 1024
)

// maxFileSize bounds what is read: a configuration is written by people.
const maxFileSize = 4 << 20

// A Setting is one field that is set from outside the file.
type Setting struct {
	Field string // as in the file, with dots: log.level
	Value string
	From  string // where it came from, for errors: RUNNERD_LOG_LEVEL or --log-level
}

// Source says where a configuration is read from.
type Source struct {
	File      string                      // empty: Demo
	LookupEnv func(string) (string, bool) // nil: no environment
	Flags     []Setting                   // win over all else
}

// Fields are the fields that the environment and flags can set, in the order
// of the schema. The variable of a field is [EnvName] of it.
func Fields() []string {
	return []string{"listen", "data_dir", "metrics_listen", "log.level", "log.format", "limits.max_active_runs"}
}

// EnvName is the variable of a field: RUNNERD_LOG_LEVEL for log.level.
func EnvName(field string) string {
	return "RUNNERD_" + strings.ToUpper(strings.ReplaceAll(field, ".", "_"))
}

// Load reads and checks a configuration and fills in the defaults of the
// daemon. The error is an [*Error] where the configuration itself is wrong.
func Load(src Source) (*configv1.Config, error) {
	data, name, err := src.read()
	if err != nil {
		return nil, err
	}
	cfg, problems := parse(data, name, src.settings())
	if len(problems) > 0 {
		return nil, &Error{Problems: problems}
	}
	if cfg.Listen == "" {
		cfg.Listen = DefaultListen
	}
	if cfg.DataDir == "" {
		lookup := src.LookupEnv
		if lookup == nil {
			lookup = func(string) (string, bool) { return "", false }
		}
		if cfg.DataDir, err = DefaultDataDir(lookup); err != nil {
			return nil, err
		}
	}
	if cfg.Log == nil {
		cfg.Log = &configv1.Log{}
	}
	if cfg.Log.Level == "" {
		cfg.Log.Level = "info"
	}
	if cfg.Log.Format == "" {
		cfg.Log.Format = "text"
	}
	if cfg.Limits == nil {
		cfg.Limits = &configv1.Limits{}
	}
	if cfg.Limits.MaxActiveRuns == nil {
		cfg.Limits.MaxActiveRuns = proto.Uint32(DefaultMaxActiveRuns)
	}
	return cfg, nil
}

// DefaultDataDir is the data folder where none is configured:
// $XDG_DATA_HOME/runnerd, or ~/.local/share/runnerd.
func DefaultDataDir(lookupEnv func(string) (string, bool)) (string, error) {
	if dir, _ := lookupEnv("XDG_DATA_HOME"); filepath.IsAbs(dir) { // the XDG rule: a relative one is ignored
		return filepath.Join(dir, "runnerd"), nil
	}
	if home, _ := lookupEnv("HOME"); home != "" {
		return filepath.Join(home, ".local", "share", "runnerd"), nil
	}
	return "", errors.New("neither HOME nor XDG_DATA_HOME is set: name a data folder with --data-dir")
}

func (src Source) read() (data []byte, name string, err error) {
	if src.File == "" {
		return Demo, "built-in configuration", nil
	}
	info, err := os.Stat(src.File)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, "", fmt.Errorf("configuration file %s does not exist", src.File)
	case err != nil:
		return nil, "", fmt.Errorf("reading the configuration: %w", err)
	case info.Size() > maxFileSize:
		return nil, "", fmt.Errorf("configuration file %s is over %d bytes", src.File, maxFileSize)
	}
	if data, err = os.ReadFile(src.File); err != nil {
		return nil, "", fmt.Errorf("reading the configuration: %w", err)
	}
	return data, src.File, nil
}

// settings is what the environment and the flags name, the winner of a field last.
func (src Source) settings() []Setting {
	var all []Setting
	if src.LookupEnv != nil {
		for _, field := range Fields() {
			if value, ok := src.LookupEnv(EnvName(field)); ok && value != "" {
				all = append(all, Setting{Field: field, Value: value, From: EnvName(field)})
			}
		}
	}
	return append(all, src.Flags...)
}

// apply puts a setting into cfg.
func (s Setting) apply(cfg *configv1.Config) error {
	if cfg.Log == nil {
		cfg.Log = &configv1.Log{}
	}
	switch s.Field {
	case "listen":
		cfg.Listen = s.Value
	case "data_dir":
		cfg.DataDir = s.Value
	case "metrics_listen":
		cfg.MetricsListen = s.Value
	case "log.level":
		cfg.Log.Level = s.Value
	case "log.format":
		cfg.Log.Format = s.Value
	case "limits.max_active_runs":
		n, err := strconv.ParseUint(s.Value, 10, 32)
		if err != nil {
			return fmt.Errorf("%q is not a number from 1 to 100000", s.Value)
		}
		if cfg.Limits == nil {
			cfg.Limits = &configv1.Limits{}
		}
		cfg.Limits.MaxActiveRuns = new(uint32(n))
	default:
		return fmt.Errorf("%s cannot be set from outside the file", s.Field)
	}
	return nil
}
