package main

import (
	"regexp"
	"strings"
)

// initialisms are the words of the PRM that Go spells in capitals.
var initialisms = func() map[string]string {
	m := map[string]string{"mkey": "MKey", "uars": "UARs", "ok": "OK"}
	for _, w := range strings.Fields(`EQ EQE EQN EQC CQ CQE CQN CQC QP QPN QPC SQ RQ WQ WQE WQEBB SRQ SRQC SRQN
		RMP RMPC XRC XRCD PD MTT MKC KLM KSM UAR HCA ISSI ID FW IB VF PF GID GUID MAC MAD IP DC DCT UMR BSF LID
		PSN RNR ODP UID MTU DBR CRR RFR PCI PCIE ADS VHCA UCTX UMEM`) {
		m[strings.ToLower(w)] = w
	}
	return m
}()

var (
	reDigits = regexp.MustCompile(`^([a-z]+)(\d+)$`)
	// Transitions: init2rtr, 2err, sqd2rts.
	reTwo = regexp.MustCompile(`^([a-z]*)2([a-z]+)$`)
)

// camel turns the PRM's snake_case into Go's CamelCase.
func camel(name string) string {
	words := strings.Split(name, "_")
	var b strings.Builder
	for i, w := range words {
		if w == "" {
			continue
		}
		s := word(w, i == len(words)-1)
		if b.Len() > 0 && isDigit(s[0]) && isDigit(b.String()[b.Len()-1]) {
			b.WriteByte('_')
		}
		b.WriteString(s)
	}
	return b.String()
}

func word(w string, last bool) string {
	if s, ok := initialisms[w]; ok {
		return s
	}
	if last && w == "to" {
		return "TO" // a time-out
	}
	if m := reDigits.FindStringSubmatch(w); m != nil {
		if s, ok := initialisms[m[1]]; ok {
			return s + m[2]
		}
	}
	if m := reTwo.FindStringSubmatch(w); m != nil {
		return title(m[1]) + "2" + title(m[2])
	}
	return title(w)
}

func title(w string) string {
	if w == "" {
		return ""
	}
	return strings.ToUpper(w[:1]) + w[1:]
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
