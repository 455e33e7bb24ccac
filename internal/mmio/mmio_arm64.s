#include "textflag.h"

// func Store32(p unsafe.Pointer, v uint32)
TEXT ·Store32(SB), NOSPLIT, $0-12
	MOVD p+0(FP), R0
	MOVW v+8(FP), R1
	MOVW R1, (R0)
	RET

// func Store64(p unsafe.Pointer, v uint64)
TEXT ·Store64(SB), NOSPLIT, $0-16
	MOVD p+0(FP), R0
	MOVD v+8(FP), R1
	MOVD R1, (R0)
	RET

// DMB OSHST twice: the WQEs before the record, the record before the register.
// func Doorbell(word *uint32, n uint32, reg unsafe.Pointer, v uint64)
TEXT ·Doorbell(SB), NOSPLIT, $0-32
	MOVD word+0(FP), R0
	MOVW n+8(FP), R1
	MOVD reg+16(FP), R2
	MOVD v+24(FP), R3
	DMB  $2
	MOVW R1, (R0)
	DMB  $2
	MOVD R3, (R2)
	RET

// func Copy64(dst, src unsafe.Pointer, n uintptr)
TEXT ·Copy64(SB), NOSPLIT, $0-24
	MOVD dst+0(FP), R0
	MOVD src+8(FP), R1
	MOVD n+16(FP), R2
	LSR  $6, R2
	CBZ  R2, done
loop:
	LDP  0(R1), (R3, R4)
	LDP  16(R1), (R5, R6)
	STP  (R3, R4), 0(R0)
	STP  (R5, R6), 16(R0)
	LDP  32(R1), (R3, R4)
	LDP  48(R1), (R5, R6)
	STP  (R3, R4), 32(R0)
	STP  (R5, R6), 48(R0)
	ADD  $64, R1
	ADD  $64, R0
	SUB  $1, R2
	CBNZ R2, loop
done:
	RET

// DMB OSHST: stores to memory before stores to the device.
// func ToDevice()
TEXT ·ToDevice(SB), NOSPLIT, $0-0
	DMB $2
	RET

// DMB OSHLD: the ownership word before what it guards.
// func FromDevice()
TEXT ·FromDevice(SB), NOSPLIT, $0-0
	DMB $1
	RET

// DSB ST: the copy has left the core.
// func FlushWC()
TEXT ·FlushWC(SB), NOSPLIT, $0-0
	DSB $14
	RET
