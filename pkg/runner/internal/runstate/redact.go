package runstate

import (
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// hidden stands where a string was that is not shown.
const hidden = "[redacted]"

// Redact gives the public part of an event: what everyone who may see the run may see. It never changes ev, and gives
// ev itself if there is nothing to hide.
func Redact(ev *runnerdv1.Event) *runnerdv1.Event { return RedactMessage(ev) }

// isPublicPart says whether ev is only the public part of an event: redaction changed it once, and has nothing more to
// change.
func isPublicPart(ev *runnerdv1.Event) bool {
	return len(ev.GetPrivateDigest()) > 0 && Redact(ev) == ev
}

// RedactRun gives what everyone who may see a run may see of it; run itself if that is everything.
func RedactRun(run *runnerdv1.Run) *runnerdv1.Run { return RedactMessage(run) }

// RedactMessage gives the public part of any message by the redaction option of its fields. It never changes m, shares
// with it what is the same, and gives m itself if there is nothing to hide. Fields that this version does not know are
// left out: nobody said that they may be shown.
func RedactMessage[T proto.Message](m T) T {
	reflected := m.ProtoReflect()
	if !reflected.IsValid() {
		return m
	}
	public := planOf(reflected.Descriptor(), false).redact(reflected)
	if public == nil {
		return m
	}
	return public.Interface().(T) //nolint:errcheck,forcetypeassert // a message makes messages of its own type
}

// OutlineMessage is as [RedactMessage], but leaves out whatever is not shown as it is: all text, arguments and results.
func OutlineMessage[T proto.Message](m T) T {
	reflected := m.ProtoReflect()
	if !reflected.IsValid() {
		return m
	}
	public := planOf(reflected.Descriptor(), true).redact(reflected)
	if public == nil {
		return m
	}
	return public.Interface().(T) //nolint:errcheck,forcetypeassert // a message makes messages of its own type
}

// A plan says how to redact the messages of one type. It lists only fields in which there can be something to hide.
type plan struct {
	fields []fieldPlan
	oneofs []oneofPlan // one look for all the fields of a oneof: an event has dozens of payloads and holds one
}

type oneofPlan struct {
	oneof  protoreflect.OneofDescriptor
	fields map[protoreflect.FieldNumber]fieldPlan
}

// fieldPlan says how to redact the values of one field. Key is for maps only. If drop is set, the field is left out.
type fieldPlan struct {
	field      protoreflect.FieldDescriptor
	key, value redactor
	drop       bool
}

// A redactor gives the public part of one value and whether it differs; nil: there is nothing to hide.
type redactor func(protoreflect.Value) (public protoreflect.Value, changed bool)

var (
	plansMu sync.RWMutex
	plans   = make(map[planKey]*plan)
)

// planKey names the two plans of a type: to redact, or to leave only an outline.
type planKey struct {
	message protoreflect.FullName
	outline bool
}

// planOf gives a plan of a type, made at its first use.
func planOf(message protoreflect.MessageDescriptor, outline bool) *plan {
	plansMu.RLock()
	p, ok := plans[planKey{message.FullName(), outline}]
	plansMu.RUnlock()
	if ok {
		return p
	}
	plansMu.Lock()
	defer plansMu.Unlock()
	return makePlan(message, outline)
}

// makePlan makes the plans of a type and of all that it holds, while plansMu is locked.
func makePlan(message protoreflect.MessageDescriptor, outline bool) *plan {
	key := planKey{message.FullName(), outline}
	if p, ok := plans[key]; ok {
		return p // perhaps not complete yet: a type may hold itself
	}
	p := &plan{}
	plans[key] = p
	oneofs := make(map[protoreflect.Name]int)
	for i := range message.Fields().Len() {
		field := message.Fields().Get(i)
		f := fieldPlan{field: field}
		if field.IsMap() {
			f.key = redactorOf(field, field.MapKey(), outline)
			f.value = redactorOf(field, field.MapValue(), outline)
			f.drop = outline && (f.key != nil || isText(field.MapValue()) && f.value != nil)
		} else {
			f.value = redactorOf(field, field, outline)
			f.drop = outline && isText(field) && f.value != nil
		}
		if f.key == nil && f.value == nil {
			continue
		}
		oneof := field.ContainingOneof()
		if oneof == nil || oneof.IsSynthetic() {
			p.fields = append(p.fields, f)
			continue
		}
		at, ok := oneofs[oneof.Name()]
		if !ok {
			at = len(p.oneofs)
			oneofs[oneof.Name()] = at
			p.oneofs = append(p.oneofs, oneofPlan{oneof, make(map[protoreflect.FieldNumber]fieldPlan)})
		}
		p.oneofs[at].fields[field.Number()] = f
	}
	return p
}

// redactorOf gives the redactor for values of the kind of a field. What holds the option is the field itself, also for
// the keys and values of a map.
func redactorOf(option, kind protoreflect.FieldDescriptor, outline bool) redactor {
	redaction := redactionOf(option)
	switch kind.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		p := makePlan(kind.Message(), outline)
		return func(v protoreflect.Value) (protoreflect.Value, bool) {
			if public := p.redact(v.Message()); public != nil {
				return protoreflect.ValueOfMessage(public), true
			}
			return v, false
		}
	case protoreflect.StringKind:
		switch redaction {
		case runnerdv1.Redaction_REDACTION_PLAIN:
			return nil
		case runnerdv1.Redaction_REDACTION_TEXT:
			return stringRedactor(RedactText)
		case runnerdv1.Redaction_REDACTION_ARGUMENTS:
			return stringRedactor(redactArguments)
		case runnerdv1.Redaction_REDACTION_RESULT:
			return stringRedactor(redactResult)
		case runnerdv1.Redaction_REDACTION_JSON:
			return stringRedactor(redactMetadata)
		default:
			return func(v protoreflect.Value) (protoreflect.Value, bool) {
				return protoreflect.ValueOfString(hidden), v.String() != "" && v.String() != hidden
			}
		}
	case protoreflect.BytesKind:
		if redaction == runnerdv1.Redaction_REDACTION_PLAIN {
			return nil
		}
		return func(v protoreflect.Value) (protoreflect.Value, bool) {
			return protoreflect.ValueOfBytes([]byte{}), len(v.Bytes()) > 0
		}
	default:
		return nil // numbers and enums are always shown
	}
}

func isText(field protoreflect.FieldDescriptor) bool {
	return field.Kind() == protoreflect.StringKind || field.Kind() == protoreflect.BytesKind
}

func stringRedactor(redact func(string) string) redactor {
	return func(v protoreflect.Value) (protoreflect.Value, bool) {
		text := v.String()
		public := redact(text)
		return protoreflect.ValueOfString(public), public != text
	}
}

// redactionOf is what a field says about itself; a field that says nothing is hidden.
func redactionOf(field protoreflect.FieldDescriptor) runnerdv1.Redaction {
	redaction, ok := proto.GetExtension(field.Options(), runnerdv1.E_Redaction).(runnerdv1.Redaction)
	if !ok || redaction == runnerdv1.Redaction_REDACTION_UNSPECIFIED {
		return runnerdv1.Redaction_REDACTION_HIDDEN
	}
	return redaction
}

// redact gives the public part of a message; nil if it is all public.
func (p *plan) redact(m protoreflect.Message) protoreflect.Message {
	var public protoreflect.Message
	if len(m.GetUnknown()) > 0 {
		public = shallowCopy(m)
	}
	one := func(f fieldPlan) {
		var v protoreflect.Value
		changed := f.drop
		if !f.drop {
			v, changed = f.redact(m)
		}
		if !changed {
			return
		}
		if public == nil {
			public = shallowCopy(m)
		}
		if f.drop {
			public.Clear(f.field)
		} else {
			public.Set(f.field, v)
		}
	}
	for _, f := range p.fields {
		if m.Has(f.field) {
			one(f)
		}
	}
	for _, o := range p.oneofs {
		if field := m.WhichOneof(o.oneof); field != nil {
			if f, ok := o.fields[field.Number()]; ok {
				one(f)
			}
		}
	}
	return public
}

// redact gives the public part of the value of a field that m has.
func (f fieldPlan) redact(m protoreflect.Message) (protoreflect.Value, bool) {
	switch v := m.Get(f.field); {
	case f.field.IsList():
		return f.redactList(m, v.List())
	case f.field.IsMap():
		return f.redactMap(m, v.Map())
	default:
		return f.value(v)
	}
}

func (f fieldPlan) redactList(m protoreflect.Message, list protoreflect.List) (protoreflect.Value, bool) {
	var public protoreflect.List
	for i := range list.Len() {
		item, changed := f.value(list.Get(i))
		if changed && public == nil {
			public = m.NewField(f.field).List()
			for j := range i {
				public.Append(list.Get(j))
			}
		}
		if public != nil {
			public.Append(item)
		}
	}
	if public == nil {
		return protoreflect.Value{}, false
	}
	return protoreflect.ValueOfList(public), true
}

func (f fieldPlan) redactMap(m protoreflect.Message, entries protoreflect.Map) (protoreflect.Value, bool) {
	public, changed := m.NewField(f.field).Map(), false
	entries.Range(func(key protoreflect.MapKey, v protoreflect.Value) bool {
		if f.key != nil {
			k, differs := f.key(key.Value())
			if differs {
				key, changed = k.MapKey(), true
			}
		}
		if f.value != nil {
			p, differs := f.value(v)
			if differs {
				v, changed = p, true
			}
		}
		public.Set(key, v)
		return true
	})
	return protoreflect.ValueOfMap(public), changed
}

// shallowCopy copies what is known of a message. The values are shared.
func shallowCopy(m protoreflect.Message) protoreflect.Message {
	c := m.New()
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		c.Set(field, v)
		return true
	})
	return c
}
