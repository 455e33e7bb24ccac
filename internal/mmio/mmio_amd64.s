#include "textflag.h"

// func Store32(p unsafe.Pointer, v uint32)
TEXT ·Store32(SB), NOSPLIT, $0-12
	MOVQ p+0(FP), AX
	MOVL v+8(FP), BX
	MOVL BX, (AX)
	RET

// func Store64(p unsafe.Pointer, v uint64)
TEXT ·Store64(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ v+8(FP), BX
	MOVQ BX, (AX)
	RET

// func Copy64(dst, src unsafe.Pointer, n uintptr)
TEXT ·Copy64(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	SHRQ $6, CX
	JZ   done
loop:
	MOVQ 0(SI), AX
	MOVQ AX, 0(DI)
	MOVQ 8(SI), AX
	MOVQ AX, 8(DI)
	MOVQ 16(SI), AX
	MOVQ AX, 16(DI)
	MOVQ 24(SI), AX
	MOVQ AX, 24(DI)
	MOVQ 32(SI), AX
	MOVQ AX, 32(DI)
	MOVQ 40(SI), AX
	MOVQ AX, 40(DI)
	MOVQ 48(SI), AX
	MOVQ AX, 48(DI)
	MOVQ 56(SI), AX
	MOVQ AX, 56(DI)
	ADDQ $64, SI
	ADDQ $64, DI
	DECQ CX
	JNZ  loop
done:
	RET

// Stores to write-back memory and a later store to uncached memory keep their
// order on amd64: the call itself is the compiler barrier.
// func ToDevice()
TEXT ·ToDevice(SB), NOSPLIT, $0-0
	RET

// Loads keep their order on amd64.
// func FromDevice()
TEXT ·FromDevice(SB), NOSPLIT, $0-0
	RET

// func FlushWC()
TEXT ·FlushWC(SB), NOSPLIT, $0-0
	SFENCE
	RET
