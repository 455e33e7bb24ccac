package cmdif

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

func TestRefusal(t *testing.T) {
	b := open(t, Options{NotReady: -1})
	defer b.close()
	for v, s := range map[prm.CommandStatus]string{
		prm.StatusInternal: "health", prm.StatusBadOp: "capabilities", prm.StatusBadParam: "input", prm.StatusBadSysState: "order",
		prm.StatusBadRes: "object", prm.StatusResBusy: "destroy", prm.StatusNotReady: "try again", prm.StatusLimit: "limit",
		prm.StatusNoRes: "pages", prm.StatusBadSizeOutsCQEs: "drain", prm.StatusBadInpLen: "longer", 0x77: "vendor",
	} {
		b.onCommand(func(c *call) { c.refuse(v, 0x123456) })
		out := make([]byte, 4112)
		err := b.conn.Exec(context.Background(), msg(prm.OpQueryHCACap, 16, 0), out)
		var ce *CommandError
		require.ErrorAs(t, err, &ce)
		require.Equal(t, CommandError{Opcode: prm.OpQueryHCACap, Status: v, Syndrome: 0x123456}, *ce)
		require.ErrorIs(t, err, Status(v))
		require.NotErrorIs(t, err, Status(prm.StatusBadPkt))
		require.False(t, Unanswered(err))
		require.Equal(t, byte(v), out[0], "the reply is the caller's")
		require.Contains(t, err.Error(), "QUERY_HCA_CAP(0x100)")
		require.Contains(t, err.Error(), "0x123456")
		require.Contains(t, err.Error(), s)
	}
	require.Zero(t, b.conn.Stats().Quarantined)
}

func TestNotReadyIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		defer b.close()
		n := 0
		b.onCommand(func(c *call) {
			if n++; n <= 3 {
				c.refuse(prm.StatusNotReady, 0)
				return
			}
			c.reply(nil)
		})
		start := time.Now()
		require.NoError(t, b.conn.NOP(context.Background()))
		require.Equal(t, (10+20+40)*time.Millisecond, time.Since(start))
		require.Equal(t, uint64(3), b.conn.Stats().Ops[0].Retries)

		b.onCommand(func(c *call) { c.refuse(prm.StatusNotReady, 0) })
		start = time.Now()
		require.ErrorIs(t, b.conn.NOP(context.Background()), Status(prm.StatusNotReady))
		require.InDelta(t, 5, time.Since(start).Seconds(), 0.6)

		ctx, cancel := context.WithTimeout(context.Background(), 35*time.Millisecond)
		defer cancel()
		start = time.Now()
		require.ErrorIs(t, b.conn.NOP(ctx), Status(prm.StatusNotReady))
		require.LessOrEqual(t, time.Since(start), 35*time.Millisecond)
	})
}

func TestDeliveryError(t *testing.T) {
	b := open(t, Options{})
	defer b.close()
	for s := prm.DeliverySignatureErr; s <= prm.DeliveryReservedNotClearErr; s++ {
		b.onCommand(func(c *call) { c.delivery = s; c.reply(bytes.Repeat([]byte{1}, 16)) })
		out := make([]byte, 16)
		err := b.conn.Exec(context.Background(), msg(prm.OpNop, 16, 0), out)
		var de *DeliveryError
		require.ErrorAs(t, err, &de)
		require.Equal(t, s, de.Status)
		require.Equal(t, make([]byte, 16), out)
		require.Contains(t, err.Error(), s.Text())
	}
}

// A reply with the wrong token never reaches a caller.
func TestWrongTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		defer b.close()
		b.onCommand(func(c *call) { c.boxToken = true; c.reply(bytes.Repeat([]byte{0}, 600)) })
		out := bytes.Repeat([]byte{0xaa}, 600)
		err := b.conn.Exec(context.Background(), msg(prm.OpNop, 16, 0), out)
		var re *ReplyError
		require.ErrorAs(t, err, &re)
		require.ErrorIs(t, err, ErrNotOurs)
		require.Equal(t, 1, re.Mailbox)
		require.Equal(t, bytes.Repeat([]byte{0xaa}, 600), out)
		require.Zero(t, b.conn.Stats().Quarantined, "the entry itself was ours")

		// An earlier command's answer in our entry: our own may still come, so
		// the slot waits for it.
		var held *call
		b.onCommand(func(c *call) { held = c; c.entryToken = true; c.reply(nil) })
		err = b.conn.Exec(context.Background(), msg(prm.OpNop, 600, 0), out)
		require.ErrorAs(t, err, &re)
		require.ErrorIs(t, err, ErrNotOurs)
		require.Equal(t, -1, re.Mailbox)
		require.True(t, Unanswered(err))
		st := b.conn.Stats()
		require.Equal(t, uint64(1), st.Foreign)
		require.Equal(t, 1, st.Quarantined)
		b.onCommand(echo)
		require.NoError(t, b.conn.NOP(context.Background()))
		require.Equal(t, 1, b.conn.Stats().Quarantined)
		held.entryToken = false
		held.reply(nil)
		require.NoError(t, b.conn.NOP(context.Background()))
		require.Zero(t, b.conn.Stats().Quarantined)
		require.Equal(t, uint64(1), b.conn.Stats().Late)
	})
}

// Signatures are checked only on request, and then any flipped one is found.
func TestSignatures(t *testing.T) {
	b := open(t, Options{})
	defer b.close()
	spoil := []func(*call){func(c *call) { c.entrySig = true }, func(c *call) { c.boxSig = true }}
	for i, f := range spoil {
		b.onCommand(func(c *call) { f(c); c.reply(nil) })
		b.conn.VerifyOutputs(false)
		require.NoError(t, b.conn.Exec(context.Background(), msg(prm.OpNop, 16, 0), make([]byte, 600)), i)
		b.conn.VerifyOutputs(true)
		err := b.conn.Exec(context.Background(), msg(prm.OpNop, 16, 0), make([]byte, 600))
		require.ErrorIs(t, err, ErrSignature)
		var re *ReplyError
		require.ErrorAs(t, err, &re)
		require.Equal(t, []int{-1, 1}[i], re.Mailbox)
	}
	b.onCommand(echo)
	require.NoError(t, b.conn.Exec(context.Background(), msg(prm.OpNop, 16, 0), make([]byte, 600)))
	require.Zero(t, b.conn.Stats().Quarantined)
}

func TestXor8(t *testing.T) {
	b := msg(0, 600, 5)
	for _, n := range []int{0, 1, 7, 8, 9, 62, 64, 575, 576, 600} {
		require.Equal(t, xorOf(b[:n]), xor8(b[:n]), n)
	}
}

func TestHexdump(t *testing.T) {
	var got []byte
	h := Hexdump{Prefix: "mlx5_core 0000:3b:00.0: "}
	var events []TraceEvent
	b := open(t, Options{Trace: func(e TraceEvent) {
		got = h.Append(got, e)
		events = append(events, e)
	}})
	defer b.close()
	b.onCommand(func(c *call) { c.reply([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0xca, 0xfe}) })
	require.NoError(t, b.conn.Exec(context.Background(), msg(prm.OpNop, 16, 0), make([]byte, 16)))
	require.Len(t, events, 2)
	require.Equal(t, `mlx5_core 0000:3b:00.0: cmd[0]: start dump
mlx5_core 0000:3b:00.0: cmd[0]: dump command NOP(0x80d) INPUT
cmd[0]: 000: 07000000 00000010 00000000 00000000
cmd[0]: 010: 080d0000 00000000 14e2b1a3 d5ca13d6
cmd[0]: 020: 00000000 00000000 00000000 00000000
cmd[0]: 030: 00000000 00000000 00000010 01XX0001
mlx5_core 0000:3b:00.0: cmd[0]: end dump
mlx5_core 0000:3b:00.0: cmd[0]: start dump
mlx5_core 0000:3b:00.0: cmd[0]: dump command NOP(0x80d) OUTPUT
cmd[0]: 000: 07000000 00000010 00000000 00000000
cmd[0]: 010: 080d0000 00000000 14e2b1a3 d5ca13d6
cmd[0]: 020: 00000000 00000000 cafe0000 00000000
cmd[0]: 030: 00000000 00000000 00000010 01XX0000
mlx5_core 0000:3b:00.0: cmd[0]: end dump
`, blankSignatures(string(got), msg(prm.OpNop, 16, 0)))

	// Mailboxes: the offset runs on; the data form has only message bytes.
	got, h = nil, Hexdump{DataOnly: true}
	require.NoError(t, b.conn.Exec(context.Background(), msg(prm.OpNop, 16+512+20, 0), make([]byte, 8)))
	lines := bytes.Split(got, []byte("\n"))
	require.Equal(t, "cmd[0]: dump command data NOP(0x80d) INPUT", string(lines[1]))
	require.Equal(t, "cmd[0]: 000: ", string(lines[2][:13]))
	require.Equal(t, "cmd[0]: 010: ", string(lines[3][:13]))
	require.Equal(t, "cmd[0]: 220: ", string(lines[2+1+32+1][:13]))
	require.Equal(t, "cmd[0]: end dump", string(lines[2+1+32+2]))

	var w bytes.Buffer
	b.conn.SetTrace(Hexdump{}.Tracer(&w))
	require.NoError(t, b.conn.Exec(context.Background(), msg(prm.OpNop, 100, 0), make([]byte, 100)))
	require.Equal(t, 2, bytes.Count(w.Bytes(), []byte("command block:\n")))
	require.Contains(t, w.String(), "cmd[0]: 270: ", "64 + 576 − 16")
	b.conn.SetTrace(nil)
}

// blankSignatures replaces what the test computes itself: the signature, after
// checking it, and the body of msg.
func blankSignatures(s string, in []byte) string {
	body := fmt.Sprintf("%x %x", in[8:12], in[12:16])
	lines := bytes.Split([]byte(s), []byte("\n"))
	for _, l := range lines {
		if i := bytes.Index(l, []byte(": 030: ")); i > 0 {
			copy(l[len(l)-6:], "XX")
		}
	}
	return string(bytes.ReplaceAll(bytes.Join(lines, []byte("\n")), []byte(body), []byte("14e2b1a3 d5ca13d6")))
}
