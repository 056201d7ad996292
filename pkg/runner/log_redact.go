package runner

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// RedactLog returns a handler that replaces known shapes of secrets in messages and attributes before h gets them. What
// runnerd logs holds no payload; but errors of hosts, and values of panics, may hold anything. [New] and [NewServer]
// put it before the handlers of their loggers.
func RedactLog(h slog.Handler) slog.Handler {
	if h, ok := h.(redactedLog); ok {
		return h
	}
	return redactedLog{h}
}

type redactedLog struct{ to slog.Handler }

// Enabled implements [slog.Handler].
func (h redactedLog) Enabled(ctx context.Context, level slog.Level) bool {
	return h.to.Enabled(ctx, level)
}

// Handle implements [slog.Handler].
func (h redactedLog) Handle(ctx context.Context, record slog.Record) error {
	public := slog.NewRecord(record.Time, record.Level, runstate.RedactText(record.Message), record.PC)
	record.Attrs(func(a slog.Attr) bool {
		public.AddAttrs(redactAttr(a))
		return true
	})
	return h.to.Handle(ctx, public)
}

// WithAttrs implements [slog.Handler].
func (h redactedLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return redactedLog{h.to.WithAttrs(redactAttrs(attrs))}
}

// WithGroup implements [slog.Handler].
func (h redactedLog) WithGroup(name string) slog.Handler { return redactedLog{h.to.WithGroup(name)} }

func redactAttrs(attrs []slog.Attr) []slog.Attr {
	public := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		public[i] = redactAttr(a)
	}
	return public
}

// redactAttr replaces what it must. The text of a value of any type is what would be logged of it.
func redactAttr(a slog.Attr) slog.Attr {
	a.Value = a.Value.Resolve()
	switch a.Value.Kind() {
	case slog.KindString:
		a.Value = slog.StringValue(runstate.RedactText(a.Value.String()))
	case slog.KindGroup:
		a.Value = slog.GroupValue(redactAttrs(a.Value.Group())...)
	case slog.KindAny:
		text := fmt.Sprintf("%+v", a.Value.Any())
		if b, ok := a.Value.Any().([]byte); ok {
			text = string(b)
		}
		if runstate.RedactText(text) != text {
			a.Value = slog.StringValue(runstate.RedactText(text))
		}
	default: // numbers and times
	}
	return a
}
