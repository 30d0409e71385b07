package pool

// A look is at one volume's file. What it has seen no longer counts once something
// else was promised for the volume meanwhile: it would take that back.
type look struct{ stale bool }

func (p *Pool) beginLook(id string) *look {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.looks == nil {
		p.looks = make(map[string]map[*look]struct{})
	}
	if p.looks[id] == nil {
		p.looks[id] = make(map[*look]struct{})
	}
	l := &look{}
	p.looks[id][l] = struct{}{}
	return l
}

// endLook carries out what the look is for, under p.mu, and says whether it did: one that
// is stale has to be repeated.
func (p *Pool) endLook(id string, l *look, note func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if delete(p.looks[id], l); len(p.looks[id]) == 0 {
		delete(p.looks, id)
	}
	if !l.stale {
		note()
	}
	return !l.stale
}

// outdate is called with every change of what is promised for a volume. It needs p.mu.
func (p *Pool) outdate(id string) {
	for l := range p.looks[id] {
		l.stale = true
	}
}
