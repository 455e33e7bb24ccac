package prm

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLookup(t *testing.T) {
	for _, c := range []struct {
		s    *Struct
		path string
		at   string
		off  uint32
	}{
		{CreateEQInStruct, "eq_context_entry.log_eq_size", "0x1c 28:24", (0x10+0xc)*8 + 3},
		{CreateEQInStruct, "pas[2]", "0x120", 0x120 * 8},
		{EQCStruct, "oi", "0x00 17", 14},
		{CQCStruct, "dbr_addr", "0x38 63:0", 0x38 * 8},
		{TracerEventStruct, "event_data", "0x00 47:0", 16},
		{MtrcCapStruct, "string_db_param[7].string_db_size", "0x4c 23:0", 0x4c*8 + 8},
		{HealthBufferStruct, "assert_var[5]", "0x14", 0x14 * 8},
		{QueryHCACapOutStruct, "capability.atomic_caps.atomic_size_qp", "0x24 15:0", 0x24*8 + 16},
	} {
		r, err := c.s.Lookup(c.path)
		require.NoError(t, err)
		require.Equal(t, c.off, r.Off, c.path)
		require.Equal(t, c.at, r.Bits(), c.path)
	}
	for path, reason := range map[string]string{
		"":      `eqc has no field ""`,
		"nope":  `eqc has no field "nope"`,
		"st.x":  "eqc.st has no fields",
		"st[0]": "eqc.st is not an array",
		"st.":   "it ends with a dot",
	} {
		_, err := EQCStruct.Lookup(path)
		require.ErrorContains(t, err, reason)
	}
	for path, reason := range map[string]string{
		"string_db_param[8]":                 "mtrc_cap.string_db_param has 8 elements",
		"string_db_param[x]":                 `"x" is not an index`,
		"string_db_param[1":                  "no closing bracket",
		"string_db_param.string_db_size":     "mtrc_cap.string_db_param needs an index",
		"string_db_param[-1].string_db_size": `"-1" is not an index`,
	} {
		_, err := MtrcCapStruct.Lookup(path)
		var pe *PathError
		require.ErrorAs(t, err, &pe)
		require.ErrorContains(t, err, reason)
	}
}

func TestWidthError(t *testing.T) {
	buf := make([]byte, CreateEQInSize)
	err := CreateEQInStruct.Put(buf, "eq_context_entry.log_eq_size", 40)
	require.EqualError(t, err, "eqc.log_eq_size: 40 does not fit in 5 bits (max 31)")
	require.Equal(t, make([]byte, CreateEQInSize), buf)
	require.EqualError(t, EQCStruct.Put(buf, "oi", 2), "eqc.oi: 2 does not fit in 1 bit (max 1)")

	var le *LengthError
	_, err = EQCStruct.Get(buf[:0x2d], "producer_counter")
	require.ErrorAs(t, err, &le)
	require.Equal(t, 0x30, le.Need)
	_, err = CreateEQInStruct.Get(buf, "eq_context_entry")
	require.ErrorContains(t, err, "names the structure eqc")
	_, err = CreateEQInStruct.Get(buf, "pas")
	require.ErrorContains(t, err, "give an index")
}

func TestWriter(t *testing.T) {
	buf := make([]byte, 0x120)
	w := Write(buf, CreateEQInStruct).
		Set("opcode", uint64(OpCreateEQ)).
		Set("eq_context_entry.log_eq_size", 7).
		SetBool("eq_context_entry.oi", true).
		Set("event_bitmask[0]", 1<<EventPageRequest).
		Set("pas[1]", 0x123456789000)
	require.NoError(t, w.Err())
	in := AsCreateEQIn(buf)
	require.Equal(t, OpCreateEQ, in.Opcode())
	require.EqualValues(t, 7, in.EQContextEntry().LogEQSize())
	require.True(t, in.EQContextEntry().Oi())
	require.Equal(t, []byte{0x12, 0x34, 0x56, 0x78, 0x90, 0}, buf[CreateEQInPasOffset+10:])

	before := bytes.Clone(buf)
	w.Set("eq_context_entry.intr", 1<<12).Set("eq_context_entry.intr", 5)
	require.EqualError(t, w.Err(), "eqc.intr: 4096 does not fit in 12 bits (max 4095)")
	require.Equal(t, before, buf, "the first error ends the writing")
	require.ErrorContains(t, Write(buf, CreateEQInStruct).Set("pas[2]", 1).Err(), "ends at byte 0x128")

	ver := make([]byte, SetDriverVersionInSize)
	require.NoError(t, Write(ver, SetDriverVersionInStruct).SetBytes("driver_version", []byte("mlxvfio")).Err())
	require.Equal(t, "mlxvfio", strings.TrimRight(string(AsSetDriverVersionIn(ver).DriverVersion()), "\x00"))
	require.Error(t, Write(ver, SetDriverVersionInStruct).SetBytes("driver_version", make([]byte, 65)).Err())
	require.ErrorContains(t, Write(ver, SetDriverVersionInStruct).SetBytes("op_mod", nil).Err(), "names a number")
}

func TestDump(t *testing.T) {
	buf := make([]byte, CreateEQInSize+8)
	in := AsCreateEQIn(buf)
	in.SetOpcode(OpCreateEQ)
	in.EQContextEntry().SetSt(EQStateFired)
	in.EQContextEntry().SetIntr(3)
	buf[0x13] = 0x40 // no field has this bit
	buf[0x117] = 9
	var out strings.Builder
	require.NoError(t, Dump(&out, buf, CreateEQInStruct))
	require.Equal(t, strings.Join([]string{
		"0x00 31:16   opcode = 0x301 CREATE_EQ",
		"0x10 11:8    eq_context_entry.st = 0xa FIRED",
		"0x24 11:0    eq_context_entry.intr = 0x3",
		"0x110        pas[0] = 0x9",
		"0x10         reserved_at_0x10 = 0x40",
		"",
	}, "\n"), out.String())

	out.Reset()
	require.NoError(t, Dump(&out, make([]byte, EQCSize), EQCStruct, All()))
	require.Equal(t, len(EQCStruct.Fields), strings.Count(out.String(), "\n"))
}

func TestDecodeUnion(t *testing.T) {
	buf := make([]byte, EQESize)
	e := AsEQE(buf)
	e.SetEventType(EventPageRequest)
	e.EventData().PagesReqEvent().SetNumPages(0xfffffff6)
	d := Decode(buf, EQEStruct)
	v, ok := d.Find("event_data")
	require.True(t, ok)
	require.Len(t, v.Bytes, EventAutoSize)

	d = Decode(buf, EQEStruct, Select("event_data", e.EventType().DataMember(0)))
	v, ok = d.Find("event_data.pages_req_event.num_pages")
	require.True(t, ok)
	require.EqualValues(t, -10, int32(uint32(v.Num)))
}

func TestDecodedJSON(t *testing.T) {
	buf := make([]byte, CQCSize)
	AsCQC(buf).SetDBRAddr(1 << 60)
	AsCQC(buf).SetSt(CQStateArmed)
	AsCQC(buf).SetLogCQSize(6)
	js, err := json.Marshal(Decode(buf, CQCStruct).NonZero())
	require.NoError(t, err)
	require.Equal(t, `{"st":{"value":9,"name":"NOTIFICATION_REQUEST_ARMED"},"log_cq_size":6,"dbr_addr":"0x1000000000000000"}`, string(js))
}

func TestEnums(t *testing.T) {
	require.Equal(t, "BAD_OP_ERR", StatusBadOp.String())
	require.Equal(t, "opcode or op_mod not supported", StatusBadOp.Text())
	require.Equal(t, "0x77", CommandStatus(0x77).String())
	require.Empty(t, CommandStatus(0x77).Text())
	require.Equal(t, "TOK_ERR", DeliveryTokenErr.String())
	require.Equal(t, "SW_RESET", NICInterfaceSwReset.String())

	id, ok := RegisterByName("mtrc_cap")
	require.True(t, ok)
	require.Equal(t, RegMtrcCap, id)
	require.Same(t, MtrcCapStruct, RegisterStruct(id))
	require.Nil(t, RegisterStruct(RegPpad))
	_, ok = RegisterByName("NOPE")
	require.False(t, ok)

	require.Same(t, CmdHCACapStruct, CapStruct(CapGeneral))
	require.Same(t, CmdHCACap2Struct, CapStruct(CapGeneral2))
	require.Same(t, AtomicCapsStruct, CapStruct(CapAtomic))
	require.Nil(t, CapStruct(CapTls))

	require.Equal(t, "ACTIVE", EventPortChange.SubtypeName(4))
	require.Equal(t, "PCI_SYNC_FOR_FW_UPDATE", EventGeneral.SubtypeName(8))
	require.Equal(t, "STRINGS_DB_UPDATE", EventDeviceTracer.SubtypeName(2))
	require.Equal(t, "0x3", EventCompletion.SubtypeName(3))
	require.Equal(t, "sync_fw_update_event", EventGeneral.DataMember(8))
	require.Empty(t, EventGeneral.DataMember(1))
	for _, ev := range EventTypeEnum.Values {
		if m := EventType(ev.Value).DataMember(0); m != "" {
			require.NotNil(t, EventAutoStruct.Field(m), ev.Name)
		}
	}
}

// TestEnumsSorted: lookups search in them.
func TestEnumsSorted(t *testing.T) {
	seen := map[*Enum]bool{}
	for _, s := range Structs() {
		for i := range s.Fields {
			if e := s.Fields[i].Enum; e != nil {
				seen[e] = true
			}
		}
	}
	for e := range seen {
		for i := range e.Values {
			require.True(t, i == 0 || e.Values[i-1].Value < e.Values[i].Value, e.Name)
			v, ok := e.ByName(strings.ToLower(e.Values[i].Name))
			require.True(t, ok)
			require.Equal(t, e.Values[i].Value, v)
		}
	}
	require.Greater(t, len(seen), 25)
}

// FuzzDecode: Decode, Encode, Dump and JSON take any bytes for any structure
// and lose none.
func FuzzDecode(f *testing.F) {
	all := Structs()
	for i, s := range all {
		if i%40 == 0 {
			f.Add(uint16(i), bytes.Repeat([]byte{0xa5}, s.Size+3), "")
		}
	}
	f.Add(uint16(0), []byte{1}, "capability[3].x")
	f.Fuzz(func(t *testing.T, which uint16, buf []byte, path string) {
		s := all[int(which)%len(all)]
		d := Decode(buf, s, Select(path, path))
		again := make([]byte, len(buf))
		require.NoError(t, d.Encode(again))
		require.Equal(t, buf, again, s.Name)
		var out bytes.Buffer
		require.NoError(t, Dump(&out, buf, s, All()))
		js, err := json.Marshal(d)
		require.NoError(t, err)
		require.True(t, json.Valid(js))
		if v, err := s.Get(buf, path); err == nil {
			require.NoError(t, s.Put(buf, path, v))
			require.Equal(t, again, buf)
		}
	})
}
