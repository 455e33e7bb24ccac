package queues

import (
	"fmt"
	"strings"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// subTypes are the event types that have sub-types (Linux device.h, port,
// general and tracer sub-types). Every other type has the one sub-type 0, without a name.
var subTypes = map[prm.EventType]*prm.Enum{
	prm.EventPortChange:   prm.PortChangeSubtypeEnum,
	prm.EventGeneral:      prm.GeneralEventSubtypeEnum,
	prm.EventDeviceTracer: prm.TracerEventSubtypeEnum,
}

var queueKinds = map[uint8]string{0: "QP", 1: "RQ", 2: "SQ", 6: "DCT"}

func nameIn(e *prm.Enum, v uint64) (string, bool) {
	for i := range e.Values {
		if e.Values[i].Value == v {
			return e.Values[i].Name, true
		}
	}
	return "", false
}

// EventName is the name of an event type, and whether the type is known. An
// unknown one is called by its number.
func EventName(t prm.EventType) (string, bool) {
	if n, ok := nameIn(prm.EventTypeEnum, uint64(t)); ok {
		return n, true
	}
	return fmt.Sprintf("EVENT_%#02x", uint8(t)), false
}

// SubTypeName is the name of a sub-type. For a type without sub-types, sub-type
// 0 is known and has no name; anything else is called by its number and is
// unknown.
func SubTypeName(t prm.EventType, sub uint8) (string, bool) {
	names, has := subTypes[t]
	if has {
		if n, ok := nameIn(names, uint64(sub)); ok {
			return n, true
		}
	} else if sub == 0 {
		return "", true
	}
	return fmt.Sprintf("SUBTYPE_%#02x", sub), false
}

// Known tells whether type and sub-type of an entry both have names.
func Known(e *prm.EQE) bool {
	_, a := EventName(e.EventType())
	_, b := SubTypeName(e.EventType(), e.EventSubType())
	return a && b
}

// Describe puts an entry into words: type, sub-type, and what its data says. Of
// an unknown entry it shows the 28 data bytes.
func Describe(e *prm.EQE) string {
	t, sub := e.EventType(), e.EventSubType()
	name, known := EventName(t)
	if s, ok := SubTypeName(t, sub); s != "" {
		name += "/" + s
		known = known && ok
	}
	if !known {
		return fmt.Sprintf("%s % x", name, e[0x20:0x3c])
	}
	if d := detail(e); d != "" {
		return name + " " + d
	}
	return name
}

// detail decodes the event data of types that carry any.
func detail(e *prm.EQE) string {
	d := e.EventData()
	switch e.EventType() {
	case prm.EventCompletion:
		return fmt.Sprintf("cqn %#x", d.CompEvent().CQNumber())
	case prm.EventPathMig, prm.EventCommEst, prm.EventSQDrained, prm.EventWQCatasError, prm.EventPathMigFailed,
		prm.EventWQInvalReqError, prm.EventWQAccessError, prm.EventSRQLastWQE:
		q := d.QPEvents()
		kind, ok := queueKinds[q.Type()]
		if !ok {
			kind = fmt.Sprintf("type %d", q.Type())
		}
		return fmt.Sprintf("%s %#x", kind, q.QPNRqnSqn())
	case prm.EventSRQCatasError, prm.EventSRQRQLimit:
		return fmt.Sprintf("srqn %#x", d.QPEvents().QPNRqnSqn())
	case prm.EventCQError:
		c := d.CQError()
		return fmt.Sprintf("cqn %#x %v", c.CQN(), c.Syndrome())
	case prm.EventPortChange:
		return fmt.Sprintf("port %d", d.PortStateChangeEvent().PortNum())
	case prm.EventCmd:
		return fmt.Sprintf("slots %#x", d.CmdInterCompEvent().CommandCompletionVector())
	case prm.EventPageRequest:
		p := d.PagesReqEvent()
		var flags []string
		if p.EmbeddedCpuFunction() {
			flags = append(flags, " embedded-cpu")
		}
		if p.ReleaseAll() {
			flags = append(flags, " release-all")
		}
		return fmt.Sprintf("function %#x%s %+d pages", p.FunctionID(), strings.Join(flags, ""), int32(p.NumPages()))
	case prm.EventNicVportChange:
		return fmt.Sprintf("vport %d", d.VportChangeEvent().VportNum())
	case prm.EventVHCAStateChange:
		return fmt.Sprintf("function %#x", d.VHCAStateEvent().FunctionID())
	case prm.EventPortModule:
		m := d.PortModuleEvent()
		return fmt.Sprintf("module %d status %d error %d", m.Module(), m.ModuleStatus(), m.ErrorType())
	case prm.EventTempWarn:
		w := d.TempWarningEvent()
		return fmt.Sprintf("sensors %#x:%#x", w.SensorWarningMsb(), w.SensorWarningLsb())
	case prm.EventXrqError:
		return fmt.Sprintf("xrqn %#x", d.XrqErrorEvent().Xrqn())
	case prm.EventDbBfCongestion:
		return fmt.Sprintf("level %d", d.DbBfCongestionEvent().CongestionLevel())
	case prm.EventDCTDrained, prm.EventDCTKeyViolation:
		return fmt.Sprintf("dctn %#x", d.DCTEvents().DCTNumber())
	case prm.EventGeneral:
		if prm.GeneralEventSubtype(e.EventSubType()) == prm.GeneralEventPCISyncForFWUpdate {
			return d.SyncFWUpdateEvent().SyncRstState().String()
		}
	case prm.EventPPS:
		return fmt.Sprintf("pin %d", d.PpsEvent().Pin())
	case prm.EventObjectChange:
		o := d.ObjChangeEvent()
		return fmt.Sprintf("%v object %#x", o.ObjType(), o.ObjID())
	}
	return ""
}
