package trace

import "fmt"

// Counters say where every event went.
type Counters struct {
	Blocks                  uint64 `json:"blocks"`                    // closed blocks decoded
	Events                  uint64 `json:"events"`                    // 32 a block
	Messages                uint64 `json:"messages"`                  // given out: orphans and unknown strings are among them
	OrphanParams            uint64 `json:"orphan_params"`             // parameters whose message is not pending
	UnknownStrings          uint64 `json:"unknown_strings"`           // headers whose pointer is in no section
	IncompleteMessages      uint64 `json:"incomplete_messages"`       // ended by a wrong part, a new header, a gap or the end
	UnreliableEventsDropped uint64 `json:"unreliable_events_dropped"` // events of complete messages whose header has no reliable time
	RawEvents               uint64 `json:"raw_events"`                // of ids that are neither string nor timestamp
	Timestamps              uint64 `json:"timestamps"`
	UnreliableTimestamps    uint64 `json:"unreliable_timestamps"` // among Timestamps
	StringEvents            uint64 `json:"string_events"`
	LostMarks               uint64 `json:"lost_marks"`     // events that say events before them were lost
	BadFormats              uint64 `json:"bad_formats"`    // messages given out as BAD_FORMAT
	SkippedBlocks           uint64 `json:"skipped_blocks"` // blocks not closed by a timestamp; in none of the above
}

// Check tests that nothing went missing: every event is a timestamp, raw, or part
// of a message.
func (c *Counters) Check() error {
	if c.Events != c.Timestamps+c.RawEvents+c.StringEvents || c.Events != c.Blocks*EventsPerBlock {
		return fmt.Errorf("trace: the counters do not balance: %d events in %d blocks, but %d timestamps + %d raw + %d string events",
			c.Events, c.Blocks, c.Timestamps, c.RawEvents, c.StringEvents)
	}
	return nil
}

// Add adds the counters of another stretch of the same trace.
func (c *Counters) Add(o *Counters) {
	c.Blocks += o.Blocks
	c.Events += o.Events
	c.Messages += o.Messages
	c.OrphanParams += o.OrphanParams
	c.UnknownStrings += o.UnknownStrings
	c.IncompleteMessages += o.IncompleteMessages
	c.UnreliableEventsDropped += o.UnreliableEventsDropped
	c.RawEvents += o.RawEvents
	c.Timestamps += o.Timestamps
	c.UnreliableTimestamps += o.UnreliableTimestamps
	c.StringEvents += o.StringEvents
	c.LostMarks += o.LostMarks
	c.BadFormats += o.BadFormats
	c.SkippedBlocks += o.SkippedBlocks
}
