package trace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadDBFindsSectionsBesideTheJSON(t *testing.T) {
	dir := t.TempDir()
	sub := filepath.Join(dir, "fw")
	require.NoError(t, os.Mkdir(sub, 0o755))
	put := func(name, text string) string {
		p := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(p, []byte(text), 0o644))
		return p
	}
	put("fw/strings0.bin", "first\x00")
	put("above.bin", "above")
	abs := put("absolute.bin", "absolute")
	path := put("fw/db.json", `{"trc_ver":3,"first_string_trace":0,"num_string_trace":255,"more":[1],
		"sections":[{"base":"0xFFFFFFFFFFFFFFFF","file":"strings0.bin"},{"base":"0x1f","file":"../above.bin","sha":"x"},
		{"base":"0X20","file":"`+filepath.ToSlash(abs)+`"}]}`)
	db, err := ReadDB(path)
	require.NoError(t, err)
	require.Equal(t, Geometry{TrcVer: 3, FirstString: 0, NumString: 255}, db.Geometry)
	require.Equal(t, []Section{
		{Base: 1<<64 - 1, Data: []byte("first\x00")}, {Base: 0x1f, Data: []byte("above")}, {Base: 0x20, Data: []byte("absolute")},
	}, db.Sections)
}

func TestDBComesBackAsItWasWritten(t *testing.T) {
	db, _ := realisticRing(1, 1)
	db.Sections = append(db.Sections, Section{Base: 0, Data: []byte{}})
	path := filepath.Join(t.TempDir(), "db.json")
	require.NoError(t, db.Write(path))
	got, err := ReadDB(path)
	require.NoError(t, err)
	require.Equal(t, db, got)
	require.Equal(t, db.Sections, db.Strings().Sections())
	var e *DBError
	require.ErrorAs(t, db.Write(filepath.Join(t.TempDir(), "no", "db.json")), &e)
	require.ErrorIs(t, e, fs.ErrNotExist)
}

// TestDBErrorsNameTheKey damages a good file in every way.
func TestDBErrorsNameTheKey(t *testing.T) {
	good := `{"trc_ver":1,"first_string_trace":2,"num_string_trace":3,"sections":[{"base":"0x10","file":"a"}]}`
	read := func(file string) ([]byte, error) {
		if file == "gone" {
			return nil, fs.ErrNotExist
		}
		return []byte(file), nil
	}
	db, err := ParseDB("x.json", []byte(good), read)
	require.NoError(t, err)
	require.Equal(t, []Section{{Base: 16, Data: []byte("a")}}, db.Sections)
	for _, c := range []struct{ old, new, key, words string }{
		{`"trc_ver":1,`, ``, "trc_ver", "missing"},
		{`"trc_ver":1`, `"trc_ver":4`, "trc_ver", "want 0 to 3"},
		{`"trc_ver":1`, `"trc_ver":-1`, "trc_ver", "want 0 to 3"},
		{`"trc_ver":1`, `"trc_ver":1.5`, "", "not the JSON"},
		{`"trc_ver":1`, `"trc_ver":"1"`, "", "not the JSON"},
		{`"first_string_trace":2,`, ``, "first_string_trace", "missing"},
		{`"first_string_trace":2`, `"first_string_trace":256`, "first_string_trace", "want 0 to 255"},
		{`"num_string_trace":3,`, ``, "num_string_trace", "missing"},
		{`"num_string_trace":3`, `"num_string_trace":256`, "num_string_trace", "256: want 0 to 255"},
		{`"0x10"`, `"10"`, "sections[0].base", "after 0x"},
		{`"0x10"`, `"0x"`, "sections[0].base", "after 0x"},
		{`"0x10"`, `"0x-1"`, "sections[0].base", "after 0x"},
		{`"0x10"`, `"0x10000000000000000"`, "sections[0].base", "after 0x"},
		{`"0x10"`, `16`, "", "not the JSON"},
		{`"base":"0x10",`, ``, "sections[0].base", "after 0x"},
		{`,"file":"a"`, ``, "sections[0].file", "missing"},
		{`"file":"a"`, `"file":"gone"`, "sections[0].file", "not exist"},
		{`]}`, `]} x`, "", "follows"},
		{`]}`, `]`, "", "not the JSON"},
		{`[{`, `[` + strings.Repeat(`{"base":"0x0","file":"a"},`, 64) + `{`, "sections", "65 of them"},
	} {
		bad := strings.Replace(good, c.old, c.new, 1)
		require.NotEqual(t, good, bad)
		_, err := ParseDB("x.json", []byte(bad), read)
		var e *DBError
		require.ErrorAs(t, err, &e, bad)
		require.Equal(t, c.key, e.Key, bad)
		require.ErrorContains(t, err, c.words)
		require.ErrorContains(t, err, "string database x.json: ")
	}
	_, err = ParseDB("x.json", []byte(strings.Replace(good, `"a"`, `"gone"`, 1)), read)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestReadDBRefusesWhatIsNoOrdinaryFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "db.json")
	_, err := ReadDB(path)
	require.ErrorIs(t, err, fs.ErrNotExist)
	var e *DBError
	_, err = ReadDB(dir)
	require.ErrorAs(t, err, &e)
	require.ErrorContains(t, err, "not an ordinary file")
	for file, words := range map[string]string{"/dev/zero": "not an ordinary file", "missing.bin": "no such file"} {
		require.NoError(t, os.WriteFile(path, []byte(fmt.Sprintf(`{"trc_ver":1,"first_string_trace":2,"num_string_trace":3,"sections":[{"base":"0x1","file":%q}]}`, file)), 0o644))
		_, err = ReadDB(path)
		require.ErrorAs(t, err, &e)
		require.Equal(t, "sections[0].file", e.Key)
		require.ErrorContains(t, err, words)
	}
	require.NoError(t, os.Truncate(path, maxDBFile+1))
	_, err = ReadDB(path)
	require.ErrorContains(t, err, "at most")
	var pe *os.PathError
	require.True(t, errors.As(err, &pe))
}
