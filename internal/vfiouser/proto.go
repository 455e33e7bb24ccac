package vfiouser

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Commands (QEMU protocol.h, enum vfio_user_command).
const (
	cmdVersion          = 1
	cmdDMAMap           = 2
	cmdDMAUnmap         = 3
	cmdDeviceGetInfo    = 4
	cmdGetRegionInfo    = 5
	cmdGetRegionIOFDs   = 6
	cmdGetIRQInfo       = 7
	cmdSetIRQs          = 8
	cmdRegionRead       = 9
	cmdRegionWrite      = 10
	cmdDMARead          = 11
	cmdDMAWrite         = 12
	cmdDeviceReset      = 13
	cmdRegionWriteMulti = 15
)

var cmdNames = map[uint16]string{
	cmdVersion: "VERSION", cmdDMAMap: "DMA_MAP", cmdDMAUnmap: "DMA_UNMAP", cmdDeviceGetInfo: "DEVICE_GET_INFO",
	cmdGetRegionInfo: "DEVICE_GET_REGION_INFO", cmdGetRegionIOFDs: "DEVICE_GET_REGION_IO_FDS",
	cmdGetIRQInfo: "DEVICE_GET_IRQ_INFO", cmdSetIRQs: "DEVICE_SET_IRQS", cmdRegionRead: "REGION_READ",
	cmdRegionWrite: "REGION_WRITE", cmdDMARead: "DMA_READ", cmdDMAWrite: "DMA_WRITE", cmdDeviceReset: "DEVICE_RESET",
	cmdRegionWriteMulti: "REGION_WRITE_MULTI",
}

func cmdName(c uint16) string {
	if n, ok := cmdNames[c]; ok {
		return n
	}
	return fmt.Sprintf("command %d", c)
}

// Header flags: bits 3:0 are the type, the rest single bits.
const (
	flagTypeMask = 0xf
	flagReply    = 0x1
	flagNoReply  = 0x10
	flagError    = 0x20
)

// Sizes. maxData is the longest data of one region access (advertised as
// max_data_xfer_size), maxMessage the longest message that either side accepts:
// what a peer can make us hold is bounded by it.
const (
	headerSize     = 16
	versionSize    = 4
	dmaMapSize     = 32
	dmaUnmapSize   = 24
	deviceInfoSize = 16
	regionInfoSize = 32
	irqInfoSize    = 16
	irqSetSize     = 20
	accessSize     = 16
	multiCountSize = 8
	multiEntrySize = 24
	multiDataSize  = 8
	maxData        = 64 << 10
	maxMessage     = headerSize + accessSize + maxData
	maxFDs         = 16 // per message; QEMU refuses a server that offers more
)

// Flags inside the bodies (linux/vfio.h).
const (
	deviceFlagReset = 1 << 0
	deviceFlagPCI   = 1 << 1

	regionFlagRead  = 1 << 0
	regionFlagWrite = 1 << 1

	irqFlagEventFD  = 1 << 0
	irqFlagNoResize = 1 << 3

	irqSetDataNone      = 1 << 0
	irqSetDataBool      = 1 << 1
	irqSetDataEventFD   = 1 << 2
	irqSetActionMask    = 1 << 3
	irqSetActionUnmask  = 1 << 4
	irqSetActionTrigger = 1 << 5
	irqSetDataMask      = irqSetDataNone | irqSetDataBool | irqSetDataEventFD
	irqSetActionsMask   = irqSetActionMask | irqSetActionUnmask | irqSetActionTrigger

	dmaFlagRead  = 1 << 0
	dmaFlagWrite = 1 << 1

	unmapFlagDirty = 1 << 0
	unmapFlagAll   = 1 << 1
)

// errShort: a body ends before its fixed part does, or its own sizes disagree.
var errShort = errors.New("message body has the wrong size")

var le = binary.LittleEndian

// header precedes every message.
type header struct {
	id, cmd uint16
	size    uint32 // of the whole message
	flags   uint32
	errno   uint32 // of a reply with flagError
}

func (h header) put(b []byte) {
	le.PutUint16(b[0:], h.id)
	le.PutUint16(b[2:], h.cmd)
	le.PutUint32(b[4:], h.size)
	le.PutUint32(b[8:], h.flags)
	le.PutUint32(b[12:], h.errno)
}

// parseHeader reads a header; an error means that the byte stream can no longer
// be trusted, since nobody knows where the next message begins.
func parseHeader(b []byte) (header, error) {
	if len(b) < headerSize {
		return header{}, errShort
	}
	h := header{
		id: le.Uint16(b[0:]), cmd: le.Uint16(b[2:]), size: le.Uint32(b[4:]),
		flags: le.Uint32(b[8:]), errno: le.Uint32(b[12:]),
	}
	if h.size < headerSize || h.size > maxMessage {
		return h, fmt.Errorf("%s message claims %d bytes, not %d to %d", cmdName(h.cmd), h.size, headerSize, maxMessage)
	}
	if t := h.flags & flagTypeMask; t > flagReply {
		return h, fmt.Errorf("%s message has the unknown type %d", cmdName(h.cmd), t)
	}
	return h, nil
}

func (h header) isReply() bool { return h.flags&flagTypeMask == flagReply }

// dmaMap is the body of DMA_MAP (struct vfio_iommu_type1_dma_map with a file
// offset in the place of the virtual address).
type dmaMap struct {
	argsz, flags       uint32
	offset, iova, size uint64
}

func (m dmaMap) put(b []byte) int {
	le.PutUint32(b[0:], m.argsz)
	le.PutUint32(b[4:], m.flags)
	le.PutUint64(b[8:], m.offset)
	le.PutUint64(b[16:], m.iova)
	le.PutUint64(b[24:], m.size)
	return dmaMapSize
}

func parseDMAMap(b []byte) (dmaMap, error) {
	if len(b) < dmaMapSize {
		return dmaMap{}, errShort
	}
	return dmaMap{le.Uint32(b[0:]), le.Uint32(b[4:]), le.Uint64(b[8:]), le.Uint64(b[16:]), le.Uint64(b[24:])}, nil
}

// dmaUnmap is the body of DMA_UNMAP and of its reply.
type dmaUnmap struct {
	argsz, flags uint32
	iova, size   uint64
}

func (m dmaUnmap) put(b []byte) int {
	le.PutUint32(b[0:], m.argsz)
	le.PutUint32(b[4:], m.flags)
	le.PutUint64(b[8:], m.iova)
	le.PutUint64(b[16:], m.size)
	return dmaUnmapSize
}

func parseDMAUnmap(b []byte) (dmaUnmap, error) {
	if len(b) < dmaUnmapSize {
		return dmaUnmap{}, errShort
	}
	return dmaUnmap{le.Uint32(b[0:]), le.Uint32(b[4:]), le.Uint64(b[8:]), le.Uint64(b[16:])}, nil
}

// deviceInfo is the body of DEVICE_GET_INFO and of its reply (struct vfio_device_info).
type deviceInfo struct{ argsz, flags, regions, irqs uint32 }

func (m deviceInfo) put(b []byte) int {
	le.PutUint32(b[0:], m.argsz)
	le.PutUint32(b[4:], m.flags)
	le.PutUint32(b[8:], m.regions)
	le.PutUint32(b[12:], m.irqs)
	return deviceInfoSize
}

func parseDeviceInfo(b []byte) (deviceInfo, error) {
	if len(b) < deviceInfoSize {
		return deviceInfo{}, errShort
	}
	return deviceInfo{le.Uint32(b[0:]), le.Uint32(b[4:]), le.Uint32(b[8:]), le.Uint32(b[12:])}, nil
}

// regionInfo is the body of DEVICE_GET_REGION_INFO and of its reply (struct vfio_region_info).
type regionInfo struct {
	argsz, flags, index, capOffset uint32
	size, offset                   uint64
}

func (m regionInfo) put(b []byte) int {
	le.PutUint32(b[0:], m.argsz)
	le.PutUint32(b[4:], m.flags)
	le.PutUint32(b[8:], m.index)
	le.PutUint32(b[12:], m.capOffset)
	le.PutUint64(b[16:], m.size)
	le.PutUint64(b[24:], m.offset)
	return regionInfoSize
}

func parseRegionInfo(b []byte) (regionInfo, error) {
	if len(b) < regionInfoSize {
		return regionInfo{}, errShort
	}
	return regionInfo{
		le.Uint32(b[0:]), le.Uint32(b[4:]), le.Uint32(b[8:]), le.Uint32(b[12:]),
		le.Uint64(b[16:]), le.Uint64(b[24:]),
	}, nil
}

// irqInfo is the body of DEVICE_GET_IRQ_INFO and of its reply (struct vfio_irq_info).
type irqInfo struct{ argsz, flags, index, count uint32 }

func (m irqInfo) put(b []byte) int {
	le.PutUint32(b[0:], m.argsz)
	le.PutUint32(b[4:], m.flags)
	le.PutUint32(b[8:], m.index)
	le.PutUint32(b[12:], m.count)
	return irqInfoSize
}

func parseIRQInfo(b []byte) (irqInfo, error) {
	if len(b) < irqInfoSize {
		return irqInfo{}, errShort
	}
	return irqInfo{le.Uint32(b[0:]), le.Uint32(b[4:]), le.Uint32(b[8:]), le.Uint32(b[12:])}, nil
}

// irqSet is the body of DEVICE_SET_IRQS (struct vfio_irq_set); data is there
// only with irqSetDataBool, one byte an interrupt.
type irqSet struct {
	argsz, flags, index, start, count uint32
	data                              []byte
}

func (m irqSet) put(b []byte) int {
	le.PutUint32(b[0:], m.argsz)
	le.PutUint32(b[4:], m.flags)
	le.PutUint32(b[8:], m.index)
	le.PutUint32(b[12:], m.start)
	le.PutUint32(b[16:], m.count)
	return irqSetSize + copy(b[irqSetSize:], m.data)
}

func parseIRQSet(b []byte) (irqSet, error) {
	if len(b) < irqSetSize {
		return irqSet{}, errShort
	}
	m := irqSet{
		argsz: le.Uint32(b[0:]), flags: le.Uint32(b[4:]), index: le.Uint32(b[8:]),
		start: le.Uint32(b[12:]), count: le.Uint32(b[16:]),
	}
	if m.flags&irqSetDataBool != 0 {
		m.data = b[irqSetSize:]
		if uint64(len(m.data)) < uint64(m.count) {
			return irqSet{}, errShort
		}
		m.data = m.data[:m.count]
	}
	return m, nil
}

// access is the body of REGION_READ and REGION_WRITE; data follows in a write
// and in the reply to a read.
type access struct {
	offset        uint64
	region, count uint32
}

func (m access) put(b []byte) int {
	le.PutUint64(b[0:], m.offset)
	le.PutUint32(b[8:], m.region)
	le.PutUint32(b[12:], m.count)
	return accessSize
}

func parseAccess(b []byte) (access, error) {
	if len(b) < accessSize {
		return access{}, errShort
	}
	return access{le.Uint64(b[0:]), le.Uint32(b[8:]), le.Uint32(b[12:])}, nil
}

// parseWriteMulti checks the body of REGION_WRITE_MULTI and gives the number of
// writes; entry i follows from multiEntry.
func parseWriteMulti(b []byte) (int, error) {
	if len(b) < multiCountSize {
		return 0, errShort
	}
	n := le.Uint64(b)
	if n > maxMessage/multiEntrySize || uint64(len(b)-multiCountSize) != n*multiEntrySize {
		return 0, errShort
	}
	return int(n), nil
}

// multiEntry is write i of a body that parseWriteMulti accepted; the data are
// the bytes that count covers.
func multiEntry(b []byte, i int) (access, []byte, error) {
	e := b[multiCountSize+i*multiEntrySize:][:multiEntrySize]
	a := access{le.Uint64(e[0:]), le.Uint32(e[8:]), le.Uint32(e[12:])}
	if a.count > multiDataSize {
		return a, nil, errShort
	}
	return a, e[accessSize : accessSize+a.count], nil
}
