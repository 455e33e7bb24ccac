package atomics_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/atomics"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/sim"
)

// Add to a 2-byte counter between two others: no carry reaches its neighbours.
func Example() {
	if err := count(context.Background()); err != nil {
		fmt.Println("failed:", err)
	}
	// Output:
	// before 65535
	// memory [1 0 1 0 1 0 1 0]
}

func count(ctx context.Context) (err error) {
	chip, err := sim.New(sim.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, chip.Close()) }()
	hca, err := mlxvfio.Open(ctx, chip.Function(0), mlxvfio.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hca.Close(ctx)) }()
	data, err := hca.OpenData(ctx, mlxvfio.DataOptions{})
	if err != nil {
		return err
	}
	local, err := data.Memory(ctx, 3*atomics.ReplySize, 0, queues.LocalWrite)
	if err != nil {
		return err
	}
	target, err := data.Memory(ctx, atomics.ReplySize, atomics.ReplySize, queues.AccessAll)
	if err != nil {
		return err
	}
	qp, _, err := mlxvfio.Connect(ctx, data, data, queues.QPOptions{})
	if err != nil {
		return err
	}

	// In which byte orders the device counts and answers is found out, not assumed.
	profile, err := mlxvfio.Probe(ctx, data, data, qp, local, target, 1)
	if err != nil {
		return err // *FaultError, if the device does atomics wrong
	}
	client, err := atomics.NewClient(atomics.ClientOptions{
		Conn: data.Conn(qp), Profile: profile, Reply: local, RKey: target.RKey, Idle: mlxvfio.Idle(data),
	})
	if err != nil {
		return err
	}
	target.Mem.CopyIn(0, []byte{1, 0, 0xff, 0xff, 1, 0, 1, 0})
	before, err := client.FetchAdd16(ctx, target.Addr+2, 2)
	if err != nil {
		return err
	}
	fmt.Println("before", before)
	after := make([]byte, 8)
	target.Mem.CopyOut(0, after)
	fmt.Printf("memory %v\n", after)
	return nil
}

// The rule under which an RDMA WRITE is seen whole or not at all.
func ExampleWriteIsAtomic() {
	const maxSize = 64 // of the responder's queue pair
	fmt.Println(atomics.WriteIsAtomic(0x1000, 64, maxSize))
	fmt.Println(atomics.WriteIsAtomic(0x1020, 64, maxSize)) // across a boundary
	// Output:
	// true
	// false
}
