//go:build linux

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"
)

// The kernel's own view of a function's health is behind generic netlink: family "devlink" (Linux uapi/linux/devlink.h,
// genetlink.h). Two questions of it are asked here: what a health reporter has counted, and what it diagnoses.
const (
	genericFamily = 16 // NETLINK_GENERIC
	controlID     = 16 // GENL_ID_CTRL
	getFamily     = 3  // CTRL_CMD_GETFAMILY
	familyID      = 1  // CTRL_ATTR_FAMILY_ID
	familyName    = 2  // CTRL_ATTR_FAMILY_NAME

	reporterGet      = 52 // DEVLINK_CMD_HEALTH_REPORTER_*
	reporterDiagnose = 55

	attrBus        = 1 // DEVLINK_ATTR_*
	attrDevice     = 2
	attrMessage    = 106
	attrPair       = 108
	attrName       = 111
	attrType       = 112
	attrData       = 113
	attrReporter   = 114
	attrReporterID = 115
	attrState      = 116
	attrErrors     = 117
	attrRecoveries = 118

	typeU8, typeString = 1, 10 // of a value, as the kernel's own attribute types
)

// devlink is a socket. It belongs to one caller at a time.
type devlink struct {
	fd     int
	family uint16
	seq    uint32
}

func openDevlink() (*devlink, error) {
	fd, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, genericFamily)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	d := &devlink{fd: fd}
	timeout := syscall.NsecToTimeval((10 * time.Second).Nanoseconds())
	err = syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &timeout)
	if err == nil {
		err = syscall.Bind(fd, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK})
	}
	var answer []attribute
	if err == nil {
		answer, err = d.ask(controlID, getFamily, attribute{familyName, []byte("devlink\x00")})
	}
	for _, a := range answer {
		if a.kind == familyID && len(a.data) >= 2 {
			d.family = binary.NativeEndian.Uint16(a.data)
		}
	}
	if err == nil && d.family == 0 {
		err = errors.New("the kernel has no devlink")
	}
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

func (d *devlink) close() error { return syscall.Close(d.fd) }

// attribute of netlink.
type attribute struct {
	kind uint16
	data []byte
}

const kindMask = 0x3fff // without the flags for nests and byte order

// attributes takes a run of them apart.
func attributes(b []byte) (out []attribute, err error) {
	for len(b) > 0 {
		if len(b) < 4 {
			return out, fmt.Errorf("%d bytes are left of netlink attributes", len(b))
		}
		n := int(binary.NativeEndian.Uint16(b))
		if n < 4 || n > len(b) {
			return out, fmt.Errorf("a netlink attribute of %d bytes in %d", n, len(b))
		}
		out = append(out, attribute{binary.NativeEndian.Uint16(b[2:]) & kindMask, b[4:n]})
		b = b[min(len(b), (n+3)&^3):]
	}
	return out, nil
}

// ask sends a command and collects the attributes of the whole answer, which may come in several messages.
func (d *devlink) ask(family uint16, command byte, args ...attribute) (answer []attribute, err error) {
	d.seq++
	var body []byte
	for _, a := range args {
		body = binary.NativeEndian.AppendUint16(body, uint16(4+len(a.data)))
		body = binary.NativeEndian.AppendUint16(body, a.kind)
		body = append(body, a.data...)
		for len(body)%4 != 0 {
			body = append(body, 0)
		}
	}
	b := binary.NativeEndian.AppendUint32(nil, uint32(20+len(body))) // the header, with the length of all
	b = binary.NativeEndian.AppendUint16(b, family)
	b = binary.NativeEndian.AppendUint16(b, syscall.NLM_F_REQUEST|syscall.NLM_F_ACK)
	b = binary.NativeEndian.AppendUint32(b, d.seq)
	b = append(b, 0, 0, 0, 0, command, 1, 0, 0) // of no port; the family's command and version
	b = append(b, body...)
	if err := syscall.Sendto(d.fd, b, 0, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK}); err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	buf := make([]byte, 64<<10)
	for {
		n, _, err := syscall.Recvfrom(d.fd, buf, 0)
		if err != nil {
			return answer, fmt.Errorf("netlink: %w", err)
		}
		messages, err := syscall.ParseNetlinkMessage(append([]byte(nil), buf[:n]...))
		if err != nil {
			return answer, fmt.Errorf("netlink: %w", err)
		}
		for _, m := range messages {
			if m.Header.Seq != d.seq {
				continue
			}
			switch m.Header.Type {
			case syscall.NLMSG_ERROR, syscall.NLMSG_DONE: // the acknowledgment, with 0
				if len(m.Data) >= 4 {
					if code := int32(binary.NativeEndian.Uint32(m.Data)); code != 0 {
						return answer, fmt.Errorf("netlink command %d: %w", command, syscall.Errno(-code))
					}
				}
				if m.Header.Type == syscall.NLMSG_ERROR {
					return answer, nil
				}
			default:
				if len(m.Data) < 4 {
					return answer, fmt.Errorf("netlink: a message of %d bytes", len(m.Data))
				}
				a, err := attributes(m.Data[4:])
				if err != nil {
					return answer, err
				}
				answer = append(answer, a...)
			}
		}
	}
}

func (d *devlink) reporter(bdf, name string, command byte) ([]attribute, error) {
	text := func(s string) []byte { return append([]byte(s), 0) }
	return d.ask(d.family, command, attribute{attrBus, text("pci")}, attribute{attrDevice, text(bdf)}, attribute{attrReporterID, text(name)})
}

// reporterState is what a health reporter has counted.
type reporterState struct {
	Broken             bool // its state is error
	Errors, Recoveries uint64
}

func (d *devlink) state(bdf, name string) (s reporterState, err error) {
	answer, err := d.reporter(bdf, name, reporterGet)
	if err != nil {
		return s, err
	}
	found := 0
	for _, a := range answer {
		if a.kind != attrReporter {
			continue
		}
		inner, err := attributes(a.data)
		if err != nil {
			return s, err
		}
		for _, i := range inner {
			switch {
			case i.kind == attrState && len(i.data) == 1:
				s.Broken = i.data[0] != 0
			case i.kind == attrErrors && len(i.data) == 8:
				s.Errors = binary.NativeEndian.Uint64(i.data)
			case i.kind == attrRecoveries && len(i.data) == 8:
				s.Recoveries = binary.NativeEndian.Uint64(i.data)
			default:
				continue
			}
			found++
		}
	}
	if found != 3 {
		return s, fmt.Errorf("reporter %s: %d of 3 values in the answer", name, found)
	}
	return s, nil
}

// diagnose asks the reporter for its diagnosis: names and values, numbers in decimal.
func (d *devlink) diagnose(bdf, name string) (map[string]string, error) {
	answer, err := d.reporter(bdf, name, reporterDiagnose)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	key, kind := "", byte(0)
	for _, a := range answer {
		if a.kind != attrMessage {
			continue
		}
		inner, err := attributes(a.data)
		if err != nil {
			return nil, err
		}
		for _, i := range inner {
			switch i.kind {
			case attrPair:
				key = ""
			case attrName:
				key = strings.TrimRight(string(i.data), "\x00")
			case attrType:
				kind = 0
				if len(i.data) > 0 {
					kind = i.data[0]
				}
			case attrData:
				switch {
				case kind == typeU8 && len(i.data) == 1:
					out[key] = fmt.Sprint(i.data[0])
				case kind == typeString:
					out[key] = strings.TrimRight(string(i.data), "\x00")
				default:
					out[key] = fmt.Sprintf("% x", i.data)
				}
			}
		}
	}
	return out, nil
}
