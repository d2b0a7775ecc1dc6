package health

import (
	"fmt"

	"github.com/kube-nft/kube-nft/tracker"
)

// A Service names a Service in one family.
type Service struct {
	Namespace, Name string
	Family          tracker.Family
}

func serviceOf(id tracker.PortID) Service { return Service{id.Namespace, id.Service, id.Family} }

// String returns "namespace/name".
func (s Service) String() string { return s.Namespace + "/" + s.Name }

// checks holds the Services with a health-check node port. All ports of a Service have the same
// one; the Service has it while one of them is left.
type checks struct {
	ports    map[Service]map[tracker.PortID]bool
	services map[Service]*tracker.ServicePort // one of its ports
}

func newChecks() *checks {
	return &checks{make(map[Service]map[tracker.PortID]bool), make(map[Service]*tracker.ServicePort)}
}

// apply applies a delta, and reports whether Services come, go or change their port. Removals come first, as a
// Service may have renamed its ports.
func (c *checks) apply(delta *tracker.Delta) (changed bool) {
	for id := range delta.Leaving {
		for _, family := range tracker.Families {
			service := Service{id.Namespace, id.Service, family}
			changed = changed || c.services[service] != nil
			delete(c.ports, service)
			delete(c.services, service)
		}
	}
	for id := range delta.Removed {
		changed = c.remove(id) || changed
	}
	for _, port := range delta.Changed {
		if port.HealthCheckNodePort == 0 {
			changed = c.remove(port.ID) || changed
		}
	}
	for _, port := range delta.Changed {
		if port.HealthCheckNodePort != 0 {
			changed = c.put(port) || changed
		}
	}
	return changed
}

func (c *checks) put(port *tracker.ServicePort) (changed bool) {
	service := serviceOf(port.ID)
	have := c.services[service]
	if have == nil {
		c.ports[service] = make(map[tracker.PortID]bool)
	}
	c.ports[service][port.ID] = true
	c.services[service] = port
	return have == nil || have.HealthCheckNodePort != port.HealthCheckNodePort || have.UID != port.UID ||
		!have.Created.Equal(port.Created)
}

func (c *checks) remove(id tracker.PortID) bool {
	service := serviceOf(id)
	if !c.ports[service][id] {
		return false
	}
	delete(c.ports[service], id)
	if len(c.ports[service]) == 0 {
		delete(c.ports, service)
		delete(c.services, service)
	}
	return true
}

// A familyPort is a health-check node port in one family.
type familyPort struct {
	family tracker.Family
	port   uint16
}

// winners returns the Service served at each port, and for each other Service why it is not served.
func winners(services map[Service]*tracker.ServicePort) (map[familyPort]Service, map[Service]error) {
	won := make(map[familyPort]Service)
	for service, port := range services {
		at := familyPort{service.Family, port.HealthCheckNodePort}
		holder, taken := won[at]
		if !taken || tracker.ByAge(port, services[holder]) < 0 {
			won[at] = service
		}
	}
	lost := make(map[Service]error)
	for service, port := range services {
		if holder := won[familyPort{service.Family, port.HealthCheckNodePort}]; holder != service {
			lost[service] = fmt.Errorf("health check node port %d (%s) belongs to Service %s, which is older; give Service %s "+
				"another spec.healthCheckNodePort",
				port.HealthCheckNodePort, service.Family, holder, service)
		}
	}
	return won, lost
}
