package prm

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// methodOf is the Go name of a field's getter, found without the generator:
// the one method that equals the field's name when case and underscores are
// set aside.
func methodOf(t *testing.T, v reflect.Value, field string) string {
	t.Helper()
	want := strings.ToLower(strings.ReplaceAll(field, "_", ""))
	for i := range v.NumMethod() {
		name := v.Type().Method(i).Name
		if strings.ToLower(strings.ReplaceAll(name, "_", "")) == want {
			return name
		}
	}
	require.Fail(t, "no getter", "%s.%s", v.Type(), field)
	return ""
}

func asUint(v reflect.Value) uint64 {
	if v.Kind() == reflect.Bool {
		if v.Bool() {
			return 1
		}
		return 0
	}
	return v.Uint()
}

// arg makes n a value of the type that a setter takes.
func arg(typ reflect.Type, n uint64) reflect.Value {
	v := reflect.New(typ).Elem()
	if typ.Kind() == reflect.Bool {
		v.SetBool(n&1 != 0)
	} else {
		v.SetUint(n)
	}
	return v
}

func fill(r *rand.Rand, b []byte) {
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

// outside clears the bits of one field, so that the rest can be compared.
func outside(b []byte, off, width uint32) []byte {
	c := bytes.Clone(b)
	putBits(c, off, width, 0)
	return c
}

func newRand() *rand.Rand { return rand.New(rand.NewPCG(20, 26)) }

// TestViewsAgreeWithDescriptors walks every accessor of every view by
// reflection with random bytes: getter and descriptor read the same number; a
// setter is read back by both and changes no other bit.
func TestViewsAgreeWithDescriptors(t *testing.T) {
	r := newRand()
	accessors := 0
	require.Len(t, views, len(Structs()))
	for _, s := range Structs() {
		buf := make([]byte, s.Size)
		view := reflect.ValueOf(views[s](buf))
		used := map[string]bool{}
		for i := range s.Fields {
			f := &s.Fields[i]
			if f.Count == 0 {
				continue
			}
			name := methodOf(t, view, f.Name)
			get := view.MethodByName(name)
			used[name] = true
			switch {
			case f.Sub != nil:
				for i := range f.Count {
					var in []reflect.Value
					if f.Array {
						in = append(in, reflect.ValueOf(i))
					}
					fill(r, buf)
					lo := int(f.Off/8) + i*f.Sub.Size
					sub := get.Call(in)[0]
					require.Equal(t, buf[lo:lo+f.Sub.Size], bytesOf(sub), "%s.%s", s.Name, f.Name)
					require.Equal(t, reflect.TypeOf(views[f.Sub](make([]byte, f.Sub.Size))), sub.Type())
				}
				if f.Array {
					require.Panics(t, func() { get.Call([]reflect.Value{reflect.ValueOf(f.Count)}) }, "%s.%s", s.Name, f.Name)
					require.Panics(t, func() { get.Call([]reflect.Value{reflect.ValueOf(-1)}) }, "%s.%s", s.Name, f.Name)
				}
			case f.Array && f.Width == 8:
				fill(r, buf)
				got := get.Call(nil)[0].Bytes()
				require.Equal(t, buf[f.Off/8:int(f.Off/8)+f.Count], got, "%s.%s", s.Name, f.Name)
				require.Equal(t, f.Count, cap(got), "%s.%s: append must not run into the next field", s.Name, f.Name)
			default:
				set := view.MethodByName("Set" + name)
				require.True(t, set.IsValid(), "%s.Set%s", s.Name, name)
				used["Set"+name] = true
				for i := range f.Count {
					checkScalar(t, r, s, f, i, buf, get, set)
				}
				if f.Array {
					require.Panics(t, func() { get.Call([]reflect.Value{reflect.ValueOf(f.Count)}) }, "%s.%s", s.Name, f.Name)
				}
			}
			accessors++
		}
		require.Len(t, used, view.NumMethod(), "%s has methods that no field explains", s.Name)
	}
	require.Greater(t, accessors, 2500)
}

func checkScalar(t *testing.T, r *rand.Rand, s *Struct, f *Field, i int, buf []byte, get, set reflect.Value) {
	t.Helper()
	path, off := f.Name, f.Off
	var index []reflect.Value
	if f.Array {
		path += "[" + strconv.Itoa(i) + "]"
		off += uint32(i) * f.Width
		index = []reflect.Value{reflect.ValueOf(i)}
	}
	typ := set.Type().In(len(index))
	if typ.Kind() == reflect.Bool {
		require.EqualValues(t, 1, f.Width, path)
	} else {
		require.LessOrEqual(t, int(f.Width), typ.Bits(), path)
	}
	for range 4 {
		fill(r, buf)
		want, err := s.Get(buf, path)
		require.NoError(t, err)
		require.Equal(t, want, asUint(get.Call(index)[0]), "%s.%s", s.Name, path)

		before := bytes.Clone(buf)
		n := r.Uint64() // wider than the field: a setter keeps the low bits
		set.Call(append(append([]reflect.Value(nil), index...), arg(typ, n)))
		n &= maxOf(f.Width)
		require.Equal(t, n, asUint(get.Call(index)[0]), "%s.%s", s.Name, path)
		got, err := s.Get(buf, path)
		require.NoError(t, err)
		require.Equal(t, n, got, "%s.%s", s.Name, path)
		require.Equal(t, outside(before, off, f.Width), outside(buf, off, f.Width), "%s.%s changes other bits", s.Name, path)
	}
}

func bytesOf(view reflect.Value) []byte {
	return view.Elem().Slice(0, view.Elem().Len()).Bytes()
}

// copyByViews carries every named field of buf into zeroes through typed
// getters and setters; what arrives must be buf, as far as the fixed part of s
// and the names go.
func copyByViews(t *testing.T, s *Struct, buf []byte) {
	t.Helper()
	if len(buf) < s.Size {
		return // the capture ends inside the structure
	}
	to := make([]byte, s.Size)
	copyFields(t, s, reflect.ValueOf(views[s](buf)), reflect.ValueOf(views[s](to)))
	var named Decoded
	for _, v := range Decode(buf[:s.Size], s) {
		if !v.Reserved {
			named = append(named, v)
		}
	}
	want := make([]byte, s.Size)
	require.NoError(t, named.Encode(want))
	require.Equal(t, want, to, s.Name)
}

func copyFields(t *testing.T, s *Struct, from, to reflect.Value) {
	t.Helper()
	for i := range s.Fields {
		f := &s.Fields[i]
		if f.Count == 0 {
			continue
		}
		name := methodOf(t, from, f.Name)
		for i := range f.Count {
			var index []reflect.Value
			if f.Array && (f.Sub != nil || f.Width > 8) {
				index = append(index, reflect.ValueOf(i))
			}
			got := from.MethodByName(name).Call(index)[0]
			switch {
			case f.Sub != nil:
				copyFields(t, f.Sub, got, to.MethodByName(name).Call(index)[0])
			case f.Array && f.Width == 8:
				copy(to.MethodByName(name).Call(nil)[0].Bytes(), got.Bytes())
			default:
				to.MethodByName("Set" + name).Call(append(index, got))
			}
		}
	}
}

// TestPutChangesOneField does the same for Put, over all paths of all
// structures, nested ones included, and tries a value one bit too wide.
func TestPutChangesOneField(t *testing.T) {
	r := newRand()
	n := 0
	for _, s := range Structs() {
		buf := make([]byte, s.Size)
		for _, v := range Decode(buf, s) {
			if v.Bytes != nil {
				continue
			}
			fill(r, buf)
			before := bytes.Clone(buf)
			num := r.Uint64() & maxOf(v.Width)
			require.NoError(t, s.Put(buf, v.Path, num), "%s %s", s.Name, v.Path)
			got, err := s.Get(buf, v.Path)
			require.NoError(t, err)
			require.Equal(t, num, got, "%s %s", s.Name, v.Path)
			require.Equal(t, outside(before, v.Off, v.Width), outside(buf, v.Off, v.Width), "%s %s", s.Name, v.Path)
			if v.Width < 64 {
				before = bytes.Clone(buf)
				var wide *WidthError
				require.ErrorAs(t, s.Put(buf, v.Path, maxOf(v.Width)+1), &wide)
				require.Equal(t, v.Width, wide.Width)
				require.Equal(t, before, buf, "a refused value changes nothing")
			}
			n++
		}
	}
	require.Greater(t, n, 3000)
}

// TestDecodeLosesNothing: whatever the bytes and however many of them, Encode
// gives them back.
func TestDecodeLosesNothing(t *testing.T) {
	r := newRand()
	for _, s := range Structs() {
		for _, n := range []int{0, 1, s.Size / 2, s.Size - 1, s.Size, s.Size + 13} {
			buf := make([]byte, n)
			fill(r, buf)
			reencode(t, buf, s)
		}
	}
}

// TestAccessorsDoNotAllocate: views are used on hot paths.
func TestAccessorsDoNotAllocate(t *testing.T) {
	buf := make([]byte, 0x2000)
	var sink uint64
	require.Zero(t, testing.AllocsPerRun(100, func() {
		in := AsCreateQPIn(buf)
		in.SetOpcode(OpCreateQP)
		in.QPC().SetLogSQSize(uint8(sink) & 0xf)
		in.QPC().PrimaryAddressPath().SetFlowLabel(0x12345)
		in.QPC().SetDBRAddr(sink)
		sink += uint64(in.QPC().LogSQSize()) + uint64(in.QPC().PrimaryAddressPath().FlowLabel())
		cqe := AsCQE64(buf[0x1000:])
		cqe.SetOwner(!cqe.Owner())
		cqe.SetTimestamp(sink)
		sink += uint64(cqe.Opcode()) + uint64(cqe.WQECounter()) + cqe.Timestamp()
		sink += uint64(AsMtrcCap(buf).StringDbParam(3).StringDbSize()) + uint64(AsHealthBuffer(buf).AssertVar(5))
		sink += uint64(len(AsCmdIfBox(buf).MailboxData()))
		sink += uint64(len(OpCreateQP.String()) + len(EventPageRequest.String()))
	}))
}
