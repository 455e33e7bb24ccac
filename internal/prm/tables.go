package prm

import (
	"sort"
	"strings"
)

// Command is one row of the opcode table.
type Command struct {
	Opcode Opcode
	Name   string  // the PRM's name: CREATE_EQ
	In     *Struct // nil where the tables do not hold the layout
	Out    *Struct
	MinIn  int // bytes without which the command makes no sense
	MinOut int
}

// Commands lists all commands by opcode. The slice is the caller's.
func Commands() []Command { return append([]Command(nil), allCommands...) }

// CommandByOpcode finds a command; nil for an opcode that has no name.
func CommandByOpcode(op Opcode) *Command {
	i := sort.Search(len(allCommands), func(i int) bool { return allCommands[i].Opcode >= op })
	if i < len(allCommands) && allCommands[i].Opcode == op {
		return &allCommands[i]
	}
	return nil
}

// CommandByName finds a command by the PRM's name, in any case; nil if there
// is none.
func CommandByName(name string) *Command {
	for i := range allCommands {
		if strings.EqualFold(allCommands[i].Name, name) {
			return &allCommands[i]
		}
	}
	return nil
}

// RegisterByName finds a register id by name, in any case.
func RegisterByName(name string) (RegisterID, bool) { return ParseRegisterID(name) }

// RegisterStruct is the layout of a register; nil where the tables do not
// hold it.
func RegisterStruct(id RegisterID) *Struct { return registerStructs[id] }

// CapStruct is the layout of a capability type; nil where the tables do not
// hold it.
func CapStruct(t CapType) *Struct { return capStructs[t] }

// subtypes are the event types whose sub-types have names.
var subtypes = map[EventType]*Enum{
	EventPortChange:   PortChangeSubtypeEnum,
	EventGeneral:      GeneralEventSubtypeEnum,
	EventDeviceTracer: TracerEventSubtypeEnum,
}

// SubtypeName names the sub-type of an event; a number in hex where it has
// none.
func (t EventType) SubtypeName(sub uint8) string {
	if e := subtypes[t]; e != nil {
		return e.String(uint64(sub))
	}
	return (&Enum{}).String(uint64(sub))
}

// eventData names the member of event_auto that holds an event's data.
var eventData = map[EventType]string{
	EventCompletion:      "comp_event",
	EventPathMig:         "qp_events",
	EventCommEst:         "qp_events",
	EventSQDrained:       "qp_events",
	EventCQError:         "cq_error",
	EventWQCatasError:    "qp_events",
	EventPathMigFailed:   "qp_events",
	EventPortChange:      "port_state_change_event",
	EventCmd:             "cmd_inter_comp_event",
	EventPageRequest:     "pages_req_event",
	EventNicVportChange:  "vport_change_event",
	EventVHCAStateChange: "vhca_state_event",
	EventWQInvalReqError: "qp_events",
	EventWQAccessError:   "qp_events",
	EventSRQCatasError:   "qp_events",
	EventSRQLastWQE:      "qp_events",
	EventSRQRQLimit:      "qp_events",
	EventGPIO:            "gpio_event",
	EventPortModule:      "port_module_event",
	EventTempWarn:        "temp_warning_event",
	EventXrqError:        "xrq_error_event",
	EventDbBfCongestion:  "db_bf_congestion_event",
	EventStallVL:         "stall_vl_event",
	EventDCTDrained:      "dct_events",
	EventDCTKeyViolation: "dct_events",
	EventPPS:             "pps_event",
	EventObjectChange:    "obj_change_event",
}

// DataMember names the member of the union event_auto that describes the data
// of an event; empty where none does.
func (t EventType) DataMember(sub uint8) string {
	if t == EventGeneral && GeneralEventSubtype(sub) == GeneralEventPCISyncForFWUpdate {
		return "sync_fw_update_event"
	}
	return eventData[t]
}
