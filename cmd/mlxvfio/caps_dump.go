package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// capSide is one of two that are compared.
type capSide struct {
	deviceHead
	// File is the dump that it was read from; empty for a device.
	File  string `json:"file,omitempty"`
	types map[prm.CapType]capPair
}

func (s *capSide) String() string {
	if s.File != "" {
		return fmt.Sprintf("%s: dump of %s", s.File, s.deviceHead)
	}
	return s.deviceHead.String()
}

// name is what messages call it.
func (s *capSide) name() string {
	if s.File != "" {
		return s.File
	}
	return s.Device
}

// capPair are the bytes of one capability type.
type capPair struct{ current, maximum []byte }

// capSide reads a device or a dump. What looks like a device is one; a file of
// such a name can be had as ./NAME.
func (a *app) capSide(ctx context.Context, word string) (*capSide, error) {
	arg, err := parseDev(word)
	if err == nil {
		side := &capSide{types: map[prm.CapType]capPair{}}
		err = a.withFunction(ctx, arg, mlxvfio.Options{}, func(_ context.Context, s *session) error {
			side.deviceHead = s.head()
			for _, c := range s.Caps() {
				side.types[c.Type] = capPair{c.Current, c.Maximum}
			}
			return nil
		})
		return side, err
	}
	if looksLikeDevice(word) {
		return nil, err
	}
	text, rerr := readSome(word, mostDump+1)
	if rerr != nil {
		if os.IsNotExist(rerr) {
			return nil, usagef("%q is no device (0000:3b:00.0, vfio-user:PATH, sim[:PROFILE]) and no file", word)
		}
		if errors.Is(rerr, fs.ErrPermission) {
			return nil, fmt.Errorf("read the dump: %w; run as a user who may read it", rerr)
		}
		return nil, usagef("read the dump: %v", rerr)
	}
	side, err := parseCapsDump(text)
	if err != nil {
		return nil, usagef("%s is no dump of capabilities: %v; make one with: mlxvfio caps DEV --json > FILE", word, err)
	}
	side.File = word
	return side, nil
}

// looksLikeDevice: the word can only have been meant as a device.
func looksLikeDevice(word string) bool {
	head, _, colon := strings.Cut(word, ":")
	return word == "sim" || strings.HasPrefix(word, "sim,") || colon && (head == "sim" || head == "vfio-user" || head == "sysfs")
}

// mostDump is the longest dump that is read, in bytes: all types that can exist,
// with their fields decoded, have less.
const mostDump = 16 << 20

// parseCapsDump reads what caps --json printed. Only the bytes count: the decoded
// fields beside them were made by the layouts of the program that wrote them.
func parseCapsDump(text []byte) (*capSide, error) {
	if len(text) > mostDump {
		return nil, fmt.Errorf("it has more than %d bytes", mostDump)
	}
	var d struct {
		Schema string `json:"schema"`
		deviceHead
		Types []struct {
			Type       string  `json:"type"`
			ID         *uint16 `json:"id"`
			CurrentHex string  `json:"current_hex"`
			MaximumHex string  `json:"maximum_hex"`
		} `json:"types"`
	}
	var kind *json.UnmarshalTypeError
	switch err := json.Unmarshal(text, &d); {
	case errors.As(err, &kind) && kind.Field == "":
		return nil, fmt.Errorf("it is a JSON %s, not an object", kind.Value)
	case errors.As(err, &kind):
		return nil, fmt.Errorf("%s is a JSON %s at byte %d, which it cannot be", kind.Field, kind.Value, kind.Offset)
	case err != nil:
		return nil, err
	}
	if d.Schema != "mlxvfio.caps/1" {
		return nil, fmt.Errorf("its schema is %q, not mlxvfio.caps/1", d.Schema)
	}
	side := &capSide{deviceHead: d.deviceHead, types: map[prm.CapType]capPair{}}
	for i, t := range d.Types {
		if t.ID == nil {
			return nil, fmt.Errorf("type %d has no id", i)
		}
		id := prm.CapType(*t.ID)
		if _, twice := side.types[id]; twice {
			return nil, fmt.Errorf("capability type %v is there twice", id)
		}
		var p capPair
		for _, x := range []struct {
			key, text string
			to        *[]byte
		}{{"current_hex", t.CurrentHex, &p.current}, {"maximum_hex", t.MaximumHex, &p.maximum}} {
			b, err := hex.DecodeString(x.text)
			if err != nil {
				return nil, fmt.Errorf("%s of capability type %v: %w", x.key, id, err)
			}
			if len(b) != mlxvfio.CapSize {
				return nil, fmt.Errorf("%s of capability type %v has %d bytes, not %d", x.key, id, len(b), mlxvfio.CapSize)
			}
			*x.to = b
		}
		side.types[id] = p
	}
	if len(side.types) == 0 {
		return nil, fmt.Errorf("it holds no capability type")
	}
	return side, nil
}
