package pool

// A look is at the file of one volume, by its id, or of one snapshot, by its snapshotKey.
// What it has seen no longer counts once something else was promised for that meanwhile:
// it would take that back.
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

// snapshotKey tells a snapshot from a volume of that id.
func snapshotKey(id string) string { return "snapshot " + id }

// beginMaking notes that the file of a volume or snapshot is to come: until endMaking, a
// look that finds none must not take back what is promised for it. It needs p.mu.
func (p *Pool) beginMaking(key string) {
	if p.making == nil {
		p.making = make(map[string]struct{})
	}
	p.making[key] = struct{}{}
	p.outdate(key)
}

func (p *Pool) endMaking(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.making, key)
	p.outdate(key)
}

// beingMade needs p.mu.
func (p *Pool) beingMade(key string) bool {
	_, making := p.making[key]
	return making
}

// outdate is called with every change of what is promised for a key. It needs p.mu.
func (p *Pool) outdate(id string) {
	for l := range p.looks[id] {
		l.stale = true
	}
}
