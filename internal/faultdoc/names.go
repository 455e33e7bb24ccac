package faultdoc

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strings"
	"syscall"
)

// Names are the sentinel errors that Describe knows, by the words it uses for them.
type Names map[string]error

// standard are the sentinels of the standard library that errors here carry.
var standard = Names{
	"deadline": context.DeadlineExceeded, "cancelled": context.Canceled, "unexpected EOF": io.ErrUnexpectedEOF,
	"EOF": io.EOF, "I/O timeout": os.ErrDeadlineExceeded, "not exist": fs.ErrNotExist,
}

// errnos are the names of those that the kernel and a server answer in the tables.
var errnos = map[syscall.Errno]string{
	syscall.EPERM: "EPERM", syscall.ENOENT: "ENOENT", syscall.EINTR: "EINTR", syscall.EIO: "EIO", syscall.ENXIO: "ENXIO",
	syscall.EBADF: "EBADF", syscall.EAGAIN: "EAGAIN", syscall.ENOMEM: "ENOMEM", syscall.EACCES: "EACCES", syscall.EFAULT: "EFAULT",
	syscall.EBUSY: "EBUSY", syscall.EEXIST: "EEXIST", syscall.ENODEV: "ENODEV", syscall.EINVAL: "EINVAL", syscall.ENFILE: "ENFILE",
	syscall.EMFILE: "EMFILE", syscall.ENOTTY: "ENOTTY", syscall.ENOSPC: "ENOSPC", syscall.EPIPE: "EPIPE", syscall.ERANGE: "ERANGE",
	syscall.EOPNOTSUPP: "EOPNOTSUPP", syscall.ECONNRESET: "ECONNRESET", syscall.ECONNREFUSED: "ECONNREFUSED", syscall.ETIMEDOUT: "ETIMEDOUT",
	syscall.E2BIG: "E2BIG", syscall.EPROTO: "EPROTO",
}

// Describe says what an error is, by its tree: the exported error types with the
// Status they carry, sentinels, and errnos, from the outside in. The types named
// in skip are left out: wrappers that every row has.
func (n Names) Describe(err error, skip ...string) string {
	var parts []string
	add := func(s string) {
		if s != "" && !slices.Contains(parts, s) && !slices.Contains(skip, s) {
			parts = append(parts, s)
		}
	}
	var walk func(err error)
	walk = func(err error) {
		if err == nil {
			return
		}
		add(n.name(err))
		switch x := err.(type) { //nolint:errorlint // it is the tree that is walked
		case interface{ Unwrap() error }:
			walk(x.Unwrap())
		case interface{ Unwrap() []error }:
			for _, e := range x.Unwrap() {
				walk(e)
			}
		}
	}
	walk(err)
	if len(parts) == 0 && err != nil {
		return fmt.Sprintf("%T", err)
	}
	return strings.Join(parts, ", ")
}

// name is the word for one error of a tree, empty for a mere wrapper.
func (n Names) name(err error) string {
	for _, set := range []Names{n, standard} {
		for _, word := range sorted(set) {
			if err == set[word] { //nolint:errorlint // one node of the tree
				return word
			}
		}
	}
	if e, ok := err.(syscall.Errno); ok { //nolint:errorlint // one node of the tree
		if s := errnos[e]; s != "" {
			return s
		}
		return fmt.Sprintf("errno %d", int(e))
	}
	v := reflect.ValueOf(err)
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	t := v.Type()
	if v.Kind() != reflect.Struct || t.Name() == "" || t.Name()[0] < 'A' || t.Name()[0] > 'Z' {
		return ""
	}
	name := t.Name()
	if !strings.HasPrefix(t.PkgPath(), module) {
		return ""
	}
	for _, field := range []string{"Status", "Syndrome"} {
		if f := v.FieldByName(field); f.IsValid() && f.CanInterface() {
			if s, ok := f.Interface().(fmt.Stringer); ok {
				return name + " " + s.String()
			}
		}
	}
	return name
}

const module = "github.com/mlxvfio/mlxvfio"

func sorted(n Names) []string {
	words := make([]string, 0, len(n))
	for w := range n {
		words = append(words, w)
	}
	slices.Sort(words)
	return words
}
