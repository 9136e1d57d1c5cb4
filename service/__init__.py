"""The service. Whatever process imports it, slots included, first remembers which module is absent."""

from service.absent import remember_absence

remember_absence()
