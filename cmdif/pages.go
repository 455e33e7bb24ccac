package cmdif

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

const (
	// PageSize is the size of the pages firmware lives on, whatever the host's.
	PageSize = 4096
	// GiveBatch is the most pages handed over by one command: 128 KiB of
	// addresses in 256 mailboxes. A ConnectX-4 was seen taking 12,868 at once.
	GiveBatch = 16384
	// ReclaimBatch is the most pages Linux asks back by one command.
	ReclaimBatch = 768
)

// PageRequest is what firmware wants: Pages > 0 more pages, < 0 to give that
// many back.
type PageRequest struct {
	Function
	Pages int
}

// QueryPages is QUERY_PAGES (0x107): how many pages the function itself wants at
// this stage.
func (c *Conn) QueryPages(ctx context.Context, stage prm.QueryPagesOpMod) (PageRequest, error) {
	r := newRequest(prm.QueryPagesInStruct, prm.QueryPagesInSize, prm.OpQueryPages, uint64(stage))
	out, err := c.run(ctx, r, prm.QueryPagesOutSize)
	if err != nil {
		return PageRequest{}, fmt.Errorf("query %v: %w", stage, err)
	}
	v := prm.AsQueryPagesOut(out)
	return PageRequest{
		Function: Function{ID: v.FunctionID(), EmbeddedCPU: v.EmbeddedCpuFunction()},
		Pages:    int(int32(v.NumPages())),
	}, nil
}

func (c *Conn) managePages(f Function, mode prm.ManagePagesOpMod, entries, tail int) request {
	n := prm.ManagePagesInSize + 8*tail
	r := newRequest(prm.ManagePagesInStruct, n, prm.OpManagePages, uint64(mode)).function(f)
	r.w.Set("input_num_entries", uint64(entries))
	return r
}

// GivePages is MANAGE_PAGES give (0x108): any number of 4 KB pages, by their
// IOVAs, in as few commands as GiveBatch allows. given says how many firmware
// has taken; when the error is a *TimeoutError, *CanceledError, *DeadError or
// *ReplyError, up to GiveBatch pages behind them may be firmware's as well, and
// must be kept until the device was reset.
func (c *Conn) GivePages(ctx context.Context, f Function, pages []uint64) (given int, err error) {
	for i, p := range pages {
		if p%PageSize != 0 {
			return 0, &MessageError{Opcode: prm.OpManagePages, Rule: fmt.Sprintf("pas[%d] is 0x%x, not a multiple of %d", i, p, PageSize)}
		}
	}
	for given < len(pages) {
		batch := pages[given:min(len(pages), given+GiveBatch)]
		r := c.managePages(f, prm.ManagePagesGive, len(batch), len(batch))
		pas := r.buf[prm.ManagePagesInPasOffset:]
		for i, p := range batch {
			binary.BigEndian.PutUint64(pas[8*i:], p)
		}
		if _, err := c.run(ctx, r, prm.ManagePagesOutSize); err != nil {
			return given, fmt.Errorf("give %d of %d pages to function %d: %w", len(batch), len(pages), f.ID, err)
		}
		given += len(batch)
	}
	return given, nil
}

// CannotGive is MANAGE_PAGES cannot-give: the answer to a page request that
// there is no memory for. Linux sends it for requests by event only.
func (c *Conn) CannotGive(ctx context.Context, f Function) error {
	if _, err := c.run(ctx, c.managePages(f, prm.ManagePagesCantGive, 0, 0), prm.ManagePagesOutSize); err != nil {
		return fmt.Errorf("tell function %d that there are no pages: %w", f.ID, err)
	}
	return nil
}

// ReclaimPages is MANAGE_PAGES take: it asks for up to most pages back, by one
// command (Linux uses ReclaimBatch), and gives the IOVAs firmware returned,
// possibly none.
func (c *Conn) ReclaimPages(ctx context.Context, f Function, most int) ([]uint64, error) {
	if most < 1 {
		return nil, &MessageError{Opcode: prm.OpManagePages, Rule: fmt.Sprintf("input_num_entries is %d; ask for at least one page", most)}
	}
	r := c.managePages(f, prm.ManagePagesTake, most, 0)
	out, err := c.run(ctx, r, prm.ManagePagesOutSize+8*most)
	if err != nil {
		return nil, fmt.Errorf("take %d pages back from function %d: %w", most, f.ID, err)
	}
	n := int(prm.AsManagePagesOut(out).OutputNumEntries())
	if n > most {
		return nil, fmt.Errorf("take pages back from function %d: firmware returned %d, at most %d were asked for: %w", f.ID, n, most, ErrNotOurs)
	}
	pas := out[prm.ManagePagesOutPasOffset:]
	pages := make([]uint64, n)
	for i := range pages {
		pages[i] = binary.BigEndian.Uint64(pas[8*i:])
	}
	return pages, nil
}
