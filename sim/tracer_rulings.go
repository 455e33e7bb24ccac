package sim

// tracerRulings are the decisions of the firmware tracer's model.
func tracerRulings() []Ruling {
	return []Ruling{
		{"tracer: one for a chip", "its functions share one tracer: whoever asks first owns it until it lets go, is reset or torn down, or a tool takes it", "register database: trace_owner; a higher-priority tool may take it (Linux fw_tracer.c)"},
		{"tracer: ownership event", "it goes to every function that listens when the owner lets go or loses the tracer and when a tool leaves, but not to the one that let go, and not when somebody acquires it", "Linux fw_tracer.c tries again at the event; what raises it has no source"},
		{"tracer: not the owner", "MTRC_CONF and MTRC_CTRL of a function that does not own the tracer are accepted without effect and read as zero", "the owner alone can use them; the answer to others has no source"},
		{"tracer: memory key", "MTRC_CONF accepts any key; if it is no MTT key, lacks local write, has a remote right, UMR, a QP of its own, pages below 4 KiB, a start that is not a multiple of 4096 or less length than the buffer, nothing is written", "a public article demands these; Linux's key has them all; what a device does with others is unproven"},
		{"tracer: blocks that cannot be written", "they are lost, their place is used by the next, whose first event has the lost mark", "no source"},
		{"tracer: start", "MTRC_CONF sends the next block to the start of the buffer; switching off and on does not", "Linux begins at the start of the buffer after it; register database: changing it while active can lose the position"},
		{"tracer: refused", "a trace mode other than memory, a buffer above log_max_trace_buffer_size, a trace_status above 1, and reads outside a string section or not in units of 64 bytes are BAD_PARAM", "register database for the limits; the status has no source"},
		{"tracer: blocks", "a block is written at once, the closing timestamp last, and nothing of the next block before it", "Linux fw_tracer.c relies on the closing timestamp; the rest has no source"},
		{"tracer: open block", "a block that is not full is closed 1 to 2 ms after its first event, and when the owner switches the tracer off; what is left of it repeats the closing timestamp", "no source; Linux reads closed blocks only"},
		{"tracer: times", "a message is dated by a timestamp event at most 128 ticks later: one is put in before the period of the 7-bit stamps ends, and a message lies in one block; with the fault trace-awkward as late as the rule allows, and across blocks", "Linux fw_tracer.c: the rule finds no other time; how devices keep it has no source"},
		{"tracer: clock", "the device's, at device_frequency_khz, and no two messages in one tick", "MTRC_CTRL shows its 53 bits; the unit has no source"},
		{"tracer: arming", "one event for blocks written since the last event, at once where there are some", "register database: arm_event"},
		{"tracer: string database", "five sections, one of them empty; first_string_trace 0x10, num_string_trace 8: an id for each unit of firmware; both methods of MTRC_STDB read", "Linux reads it with the write method, mstflint with the read method; the numbers have no source"},
		{"tracer: string database updated", "the open block is closed first, and the event goes to every function that listens; messages after it use the new one at once", "Linux fw_tracer.c reads the strings again, owner or not; what raises it has no source"},
		{"tracer: what is said", "commands and their answers, states of QPs, pages wanted, link states, syndromes, resets; not the tracer's own registers", "no source; a message for each arming would never end"},
		{"tracer: reserved versions", "with trc_ver 2 and 3 the middle bit of urts means unreliable", "reserved in the register database"},
	}
}
