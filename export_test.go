package mlxvfio

// PlantLeak makes the driver forget to undo one stage, so that a test can prove
// that checkers of leaks find it.
func (o *Options) PlantLeak(stage string) { o.skipUndo = stage }

// RouteHeader is what judges the route header of a datagram.
var RouteHeader = routeHeader

// Made is how many objects the DataPath will give back.
func (d *DataPath) Made() int { return len(d.made) }
