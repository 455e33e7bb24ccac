package sim

func environmentFaults() []faultKind { return nil }
