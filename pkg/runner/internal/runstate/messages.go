package runstate

import (
	"fmt"
	"strings"
)

const (
	maxCheckMessage = 8 << 10 // bytes of what the model is told of a failed check
	// Bytes of what it is told of all failed checks of a decision together, but of each at least the latter.
	maxCheckMessages = 32 << 10
	minCheckMessage  = 256
	maxSchemaShown   = 4 << 10 // bytes of a schema in it
	maxNamesShown    = 2 << 10 // bytes of the list of offered names in it
)

// unknownTool tells the model what it may call instead. Nothing is ever called by a name that is nearly right.
func (st *State) unknownTool(name string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "no such tool: %q", cutText(name, maxPreview))
	names := st.env.Catalogue.Names()
	if nearest := st.env.Catalogue.Nearest(name); nearest != "" {
		fmt.Fprintf(&b, "; did you mean %q?", nearest)
	}
	if len(names) == 0 {
		b.WriteString("; no tools are offered")
		return b.String()
	}
	b.WriteString("; offered: ")
	for i, n := range names {
		if b.Len() > maxNamesShown {
			fmt.Fprintf(&b, " and %d more", len(names)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(n)
	}
	return b.String()
}

// argumentsMessage tells the model what is wrong with its arguments and what they should look like. It shows nothing of
// them: others than the model may read it.
func argumentsMessage(err error, tool *Tool) string {
	message := err.Error()
	if schema := tool.GetInputSchemaJson(); schema != "" {
		if len(schema) > maxSchemaShown {
			schema = cutText(schema, maxSchemaShown) + "…"
		}
		message += "; the schema is " + schema
	}
	return message
}
