package runner

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
)

type secretValue struct{}

func (secretValue) LogValue() slog.Value { return slog.StringValue("token=canary-1") }

func TestRedactLog(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]func(*strings.Builder) slog.Handler{
		"text": func(out *strings.Builder) slog.Handler { return slog.NewTextHandler(out, nil) },
		"JSON": func(out *strings.Builder) slog.Handler { return slog.NewJSONHandler(out, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			log := slog.New(RedactLog(RedactLog(handler(&out))))
			log.With("before", "password=canary-2").WithGroup("group").Error("went wrong, api_key=canary-3",
				"error", errors.New("host says secret=canary-4"), "panic", any([]string{"ghp_canary0123456789canary"}),
				"value", secretValue{}, slog.Group("in", "text", "Bearer canary-5"), "n", 12, "plain", "tokens: 12",
				"bytes", []byte("secret=canary-6"))
			if got := out.String(); strings.Contains(got, "canary") || !strings.Contains(got, "[redacted]") ||
				!strings.Contains(got, "tokens: 12") || !strings.Contains(got, "host says") {
				t.Error(got)
			}
		})
	}
}
