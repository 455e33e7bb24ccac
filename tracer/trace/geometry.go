package trace

import "fmt"

// Geometry is what the decoder must know of the device (register MTRC_CAP).
type Geometry struct {
	TrcVer      uint8 // 0 … 3: where timestamp events say that they are unreliable
	FirstString uint8 // lowest event id of string events
	NumString   uint8 // consecutive ids from there; 0xff is a timestamp all the same
}

// urtsMask are the bits of URTS that mark an unreliable time: bit 2 in version 0,
// bit 0 in version 1 (Linux fw_tracer.c); in versions 2 and 3, which no source
// describes, any bit.
func (g Geometry) urtsMask() uint8 {
	switch g.TrcVer {
	case 0:
		return 4
	case 1:
		return 1
	}
	return 7
}

// Unreliable says that the timestamp event e gives no time to the messages before
// it. It still orders blocks.
func (g Geometry) Unreliable(e Event) bool { return e.URTS()&g.urtsMask() != 0 }

// IsString says that id is one of the string ids first … first+num−1.
func (g Geometry) IsString(id uint8) bool {
	return id != TimestampID && id-g.FirstString < g.NumString && id >= g.FirstString
}

// Warnings lists what about the geometry makes the result less certain.
func (g Geometry) Warnings() []string {
	var w []string
	if g.TrcVer > 1 {
		w = append(w, fmt.Sprintf("trc_ver %d is not described anywhere: any urts bit is taken for an unreliable timestamp", g.TrcVer))
	}
	if g.NumString == 0 {
		w = append(w, "num_string_trace is 0: no event is a string event, so there are no messages")
	}
	if int(g.FirstString)+int(g.NumString) > TimestampID {
		w = append(w, fmt.Sprintf("string ids %d to %d reach 0xff, which stays the timestamp", g.FirstString, int(g.FirstString)+int(g.NumString)-1))
	}
	return w
}

// Check refuses a geometry that the register cannot have.
func (g Geometry) Check() error {
	if g.TrcVer > 3 {
		return fmt.Errorf("trace: trc_ver %d: the field has two bits, 0 to 3", g.TrcVer)
	}
	return nil
}
