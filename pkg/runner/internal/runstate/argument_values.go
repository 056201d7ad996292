package runstate

import (
	"bytes"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// node is one value in the arguments of a call, as gates look at it.
type node struct {
	kind    jsontext.Kind
	text    string // of a string what it says; of a number, true, false and null as written; else canonical JSON
	members []member
	items   []*node
	byName  map[string]*node // of an object with many members
}

// member is one member of an object.
type member struct {
	name  string
	value *node
}

// manyMembers is from how many members on an object is not searched one by one: what a call costs must not grow with
// the square of its size.
const manyMembers = 16

// parseValues reads the canonical form of arguments that passed their checks.
func parseValues(canonical []byte) *node {
	dec := jsontext.NewDecoder(bytes.NewBuffer(canonical), jsontext.AllowDuplicateNames(true)) // there are none
	v, err := readValue(dec, string(canonical))
	if err != nil {
		panic("arguments that passed their checks: " + err.Error())
	}
	return v
}

// readValue reads one value of all, in which the texts of objects and arrays are slices: each is part of those it
// stands in.
func readValue(dec *jsontext.Decoder, all string) (*node, error) {
	token, err := dec.ReadToken()
	if err != nil {
		return nil, err
	}
	v := &node{kind: token.Kind()}
	begin := int(dec.InputOffset()) - 1
	switch v.kind {
	case jsontext.KindBeginObject:
		for dec.PeekKind() != jsontext.KindEndObject {
			name, err := dec.ReadToken()
			if err != nil {
				return nil, err
			}
			m := member{name: name.String()}
			if m.value, err = readValue(dec, all); err != nil {
				return nil, err
			}
			v.members = append(v.members, m)
		}
	case jsontext.KindBeginArray:
		for dec.PeekKind() != jsontext.KindEndArray {
			item, err := readValue(dec, all)
			if err != nil {
				return nil, err
			}
			v.items = append(v.items, item)
		}
	default:
		v.text = token.String()
		return v, nil
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, err
	}
	v.text = all[begin:dec.InputOffset()]
	return v, nil
}

// member returns a member of an object; nil: there is none, or it is no object.
func (v *node) member(name string) *node {
	if len(v.members) > manyMembers && v.byName == nil {
		v.byName = make(map[string]*node, len(v.members))
		for _, m := range v.members {
			v.byName[m.name] = m.value
		}
	}
	if v.byName != nil {
		return v.byName[name]
	}
	for _, m := range v.members {
		if m.name == name {
			return m.value
		}
	}
	return nil
}

// at returns the value that a key of a rule names: a top-level member, or with a slash at its beginning what a JSON
// Pointer leads to; nil: there is none.
func (v *node) at(key string) *node {
	if !strings.HasPrefix(key, "/") {
		return v.member(key)
	}
	for token := range jsontext.Pointer(key).Tokens() {
		switch v.kind {
		case jsontext.KindBeginObject:
			v = v.member(token)
		case jsontext.KindBeginArray:
			v = v.item(token)
		default:
			return nil
		}
		if v == nil {
			return nil
		}
	}
	return v
}

// item returns an item of an array by its index as JSON Pointers write it.
func (v *node) item(index string) *node {
	n, ok := 0, index != "" && (index == "0" || index[0] != '0')
	for _, digit := range []byte(index) {
		if n = 10*n + int(digit-'0'); !ok || digit < '0' || digit > '9' || n >= len(v.items) {
			return nil
		}
	}
	if !ok {
		return nil
	}
	return v.items[n]
}
